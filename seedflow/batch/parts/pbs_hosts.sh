
hosts() {
    sort -u "$PBS_NODEFILE"
}

on_host() {
    local host=$1
    shift
    if command -v pbs_tmrsh > /dev/null; then
        exec pbs_tmrsh "$host" "$@"
    else
        exec ssh -o BatchMode=yes "$host" "$(printf '%q ' "$@")"
    fi
}

# Runs a command once on every host of the job, the host of this script included.
on_all_hosts() {
    local host
    trap 'trap - TERM; kill $(jobs -p) 2> /dev/null' TERM
    for host in $(hosts); do
        if [ "${host%%.*}" = "${HEAD%%.*}" ]; then "$@" & else on_host "$host" "$@" & fi
    done
    while [ -n "$(jobs -pr)" ]; do wait; done
}
