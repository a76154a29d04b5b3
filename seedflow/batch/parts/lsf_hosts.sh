
hosts() {
    local words host
    if [ -s "${LSB_DJOB_HOSTFILE:-}" ]; then
        sort -u "$LSB_DJOB_HOSTFILE"
        return
    fi
    read -r -a words <<< "$LSB_MCPU_HOSTS"  # host slots host slots ...
    for ((host = 0; host < ${#words[@]}; host += 2)); do echo "${words[host]}"; done
}

on_host() {
    exec blaunch "$@"
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
