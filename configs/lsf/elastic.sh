#!/bin/bash
# seedflow on LSF: scheduler and learner are one job, and actors are jobs that come and go
#BSUB -J "seedflow"
#BSUB -W 01:00
#BSUB -wa USR1
#BSUB -wt 2
#BSUB -Q "75"
#BSUB -o %J.out
#BSUB -n 2
#BSUB -R "span[ptile=2]"

CONFIG=cartpole_vtrace                    # a file, or a shipped one: seedflow config list
SETTINGS=(actor.count=4)                  # section.key=value, on top of it
RUN_DIR=$HOME/seedflow/cartpole           # on a file system that all hosts share
PYTHON=python3                            # which has seedflow, after setup
INTERFACE=                                # of the network to use, for example ib0; empty: any
SCRATCH=${LSF_TMPDIR:-${TMPDIR:-/tmp}}    # on a disk of each host; a short path
SYSTEM=lsf                                # of dask-jobqueue
ACTOR_JOBS=2                              # jobs with actors; later: RUN_DIR/actor_jobs
ACTORS_PER_JOB=2                          # and cores of such a job
ACTOR_TIME=01:00:00                       # until such a job ends and is replaced
ACTOR_MEMORY=2GB                          # of such a job
ACTOR_DIRECTIVES=()                       # of such a job
REQUEUE=yes                               # start again where time was short
LOCK_SECONDS=300                          # wait for an attempt that still saves
setup() {  # on every host: module load, conda activate, export
    :
}

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

JOB_ID=$LSB_JOBID
INDEX=${LSB_JOBINDEX:-0}
if [ "$INDEX" = 0 ]; then INDEX=; fi
SUBMIT_DIR=${LS_SUBCWD:-$PWD}
LAST_WORDS=()  # LSF announces the end itself: -wa, -wt

# LSF does it by itself for exit code 75: -Q.
start_again() {
    return 0
}

cd "$SUBMIT_DIR" || exit 1
setup
if [ -n "$INDEX" ]; then  # one of an array
    RUN_DIR=$RUN_DIR/seed-$INDEX
    SETTINGS+=("seed=$INDEX")
fi
HEAD=$(hostname)
TMPDIR=$(mktemp -d "$SCRATCH/seedflow-XXXXXX") || exit 1
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
mkdir -p "$RUN_DIR/batch" || exit 1
# What belongs to this attempt alone: a second one never meets the first one's scheduler.
JOB_DIR=$(mktemp -d "$RUN_DIR/batch/${JOB_ID//[^A-Za-z0-9]/-}-XXXXXX") || exit 1
say "job $JOB_ID on $HEAD: run directory $RUN_DIR, logs of Dask in $JOB_DIR"

# An attempt whose end Slurm, PBS or LSF could not confirm, on a host that is cut off, may still save.
for lock in "$RUN_DIR/.lock" "$RUN_DIR/checkpoints/writer.json"; do
    if [ -e "$lock" ] && ! flock --timeout "$LOCK_SECONDS" "$lock" true; then
        say "another process holds $lock since more than $LOCK_SECONDS s: $(cat "$lock")"
        exit 1
    fi
done

run() {
    exec ${CONTAINER[@]+"${CONTAINER[@]}"} "$PYTHON" -m "$@"
}

# The program below holds the scheduler; it submits a job for each worker with actors, and cancels them.
trap '' USR1 USR2
DRIVER_ARGUMENTS=(seedflow.cli batch actors "$SYSTEM" "$CONFIG" --jobs "$ACTOR_JOBS"
    --actors-per-job "$ACTORS_PER_JOB" --time "$ACTOR_TIME" --memory "$ACTOR_MEMORY" --scratch "$SCRATCH"
    --setup "$(declare -f setup; echo setup)")
if [ -n "$INTERFACE" ]; then DRIVER_ARGUMENTS+=(--interface "$INTERFACE"); fi
for directive in ${ACTOR_DIRECTIVES[@]+"${ACTOR_DIRECTIVES[@]}"}; do
    DRIVER_ARGUMENTS+=(--directive "$directive")
done
CLUSTER=()
SCHEDULER=

DRIVER=
CANCELLED=
pass_on() {
    say "SIG$1 for the run"
    if [ -n "$DRIVER" ]; then kill "-$1" "$DRIVER" 2> /dev/null; fi
}
trap 'pass_on USR1' USR1  # the end of the job is near
trap 'CANCELLED=yes; pass_on TERM' TERM INT  # it is there
(
    trap - USR1
    exec ${LAST_WORDS[@]+"${LAST_WORDS[@]}"} ${CONTAINER[@]+"${CONTAINER[@]}"} "$PYTHON" -m \
        "${DRIVER_ARGUMENTS[@]}" --run-dir "$RUN_DIR" --resume-or-start \
        ${CLUSTER[@]+"${CLUSTER[@]}"} train.requeue_exit=true train.preemption_signal=SIGUSR1 \
        ${SETTINGS[@]+"${SETTINGS[@]}"}
) &
DRIVER=$!
while kill -0 "$DRIVER" 2> /dev/null; do wait "$DRIVER"; done  # a signal that is caught ends `wait` early
wait "$DRIVER"
CODE=$?
say "the run ended with code $CODE"

touch "$JOB_DIR/ended"
rm -f "$JOB_DIR"/*.pem
if [ -n "$SCHEDULER" ]; then
    end 20 "$SCHEDULER"  # it sends its workers home
    await 20 "${STEPS[@]}"
    end 5 "${STEPS[@]}"
fi
if [ -n "$CANCELLED" ]; then
    exit 143  # whoever cancels a job does not want it again
fi
if [ "$CODE" = 75 ] && [ "$REQUEUE" = yes ]; then  # saved, and worth another attempt
    say "starting again"
    start_again
fi
exit "$CODE"
