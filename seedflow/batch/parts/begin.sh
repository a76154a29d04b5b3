
# ---- Nothing to edit below ----------------------------------------------------------------------------

set -u
umask 077

say() {
    echo "$(date '+%F %T') seedflow: $*"
}

# Whether any of these processes is still there.
alive() {
    local pid
    for pid in "$@"; do
        if kill -0 "$pid" 2> /dev/null; then return 0; fi
    done
    return 1
}

# Waits so many seconds for the end of processes.
await() {
    local deadline=$((SECONDS + $1))
    shift
    while alive "$@" && [ "$SECONDS" -lt "$deadline" ]; do sleep 0.2; done
}

# Ends processes: SIGTERM, and SIGKILL after so many seconds.
end() {
    local seconds=$1 pid
    shift
    for pid in "$@"; do kill "$pid" 2> /dev/null; done
    await "$seconds" "$@"
    for pid in "$@"; do kill -KILL "$pid" 2> /dev/null; done
}

