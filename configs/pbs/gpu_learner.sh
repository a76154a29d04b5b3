#!/bin/bash
# seedflow on PBS: one job holds scheduler, learner and actors; one of its hosts has a GPU
#PBS -N seedflow
#PBS -l walltime=04:00:00
#PBS -S /bin/bash
#PBS -j oe
#PBS -r y
#PBS -l select=1:ncpus=6:mpiprocs=1:ngpus=1+2:ncpus=6:mpiprocs=1
#PBS -l place=scatter

CONFIG=pong_vtrace                        # a file, or a shipped one: seedflow config list
SETTINGS=(actor.count=13)                 # section.key=value, on top of it
RUN_DIR=$HOME/seedflow/pong               # on a file system that all hosts share
PYTHON=python3                            # which has seedflow, after setup
CONTAINER=()                              # for example (apptainer exec --nv seedflow.sif)
INTERFACE=                                # of the network to use, for example ib0; empty: any
SCRATCH=${TMPDIR:-/tmp}                   # on a disk of each host; a short path
ACTORS_PER_HOST=6                         # at most
ACTORS_ON_HEAD=4                          # beside the learner
SCHEDULER_OPTIONS=()                      # of dask scheduler, for example (--port 8786)
WORKER_OPTIONS=()                         # of dask worker: (--worker-port 30000:30100)
REQUEUE=yes                               # start again where time was short
LOCK_SECONDS=300                          # wait for an attempt that still saves
WALLTIME=14400                            # seconds, as above
GRACE=120                                 # seconds before that, to save
SCRIPT=                                   # this file, where it is to submit itself again
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

JOB_ID=$PBS_JOBID
INDEX=${PBS_ARRAY_INDEX:-${PBS_ARRAYID:-}}
SUBMIT_DIR=$PBS_O_WORKDIR
# PBS does not announce the end of a job early enough.
LAST_WORDS=(timeout --preserve-status --signal=USR1 "$((WALLTIME - GRACE))")

# A new job of the same script; needs a host that may submit, and SCRIPT.
start_again() {
    if [ -z "$SCRIPT" ]; then
        say "SCRIPT is not set: submit this script again to go on"
        return 1
    fi
    cd "$SUBMIT_DIR" && qsub "$SCRIPT"
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

# Only who can read the run directory gets into the cluster: everybody on the network can reach its ports.
(run seedflow.batch.credentials "$JOB_DIR") || exit 1
export DASK_SCHEDULER_FILE=$JOB_DIR/scheduler.json
export DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION=True
export DASK_DISTRIBUTED__COMM__TLS__CA_FILE=$JOB_DIR/cert.pem
for role in SCHEDULER WORKER CLIENT; do
    export "DASK_DISTRIBUTED__COMM__TLS__${role}__CERT=$JOB_DIR/cert.pem"
    export "DASK_DISTRIBUTED__COMM__TLS__${role}__KEY=$JOB_DIR/key.pem"
done

ADDRESS=()
if [ -n "$INTERFACE" ]; then ADDRESS=(--interface "$INTERFACE"); fi

# Keeps a Dask worker running on this host: one that has lost its connection is given up for good. That is
# what a nanny cannot do, so there is none.
keep_worker() {
    local role=$1 places=$2 stopping='' worker=''
    cd "$SUBMIT_DIR" || return 1
    setup
    if [ "$role" = ACTOR ]; then
        export CUDA_VISIBLE_DEVICES=  # of the learner; a batch system may hand it on to all
        if [ "$(hostname)" = "$HEAD" ]; then places=$ACTORS_ON_HEAD; fi
        if [ "$places" = 0 ]; then return 0; fi
    fi
    TMPDIR=$(mktemp -d "$SCRATCH/seedflow-XXXXXX") || return 1
    export TMPDIR
    trap 'rm -rf "$TMPDIR"' EXIT
    trap 'stopping=yes; if [ -n "$worker" ]; then kill "$worker" 2> /dev/null; fi' TERM INT HUP
    trap '' USR1 USR2  # the driver's affair
    until [ -n "$stopping" ] || [ -e "$JOB_DIR/ended" ]; do
        (run dask worker --scheduler-file "$DASK_SCHEDULER_FILE" ${ADDRESS[@]+"${ADDRESS[@]}"} \
            --no-nanny --nthreads "$places" --resources "$role=$places" --memory-limit 0 --no-dashboard \
            --local-directory "$TMPDIR" --death-timeout 60 ${WORKER_OPTIONS[@]+"${WORKER_OPTIONS[@]}"} \
            >> "$JOB_DIR/$role-$(hostname).log" 2>&1) &
        worker=$!
        while kill -0 "$worker" 2> /dev/null; do wait "$worker"; done
        if [ -z "$stopping" ] && [ ! -e "$JOB_DIR/ended" ]; then
            say "the $role worker on $(hostname) has ended; starting another one"
            sleep 2
        fi
    done
}

# What other hosts run: they may see nothing of this shell but the file system.
{
    umask -p
    declare -p CONTAINER PYTHON SUBMIT_DIR JOB_DIR HEAD SCRATCH ADDRESS WORKER_OPTIONS \
        ACTORS_ON_HEAD ACTORS_PER_HOST
    declare -px | grep ' DASK_'
    declare -f say setup run keep_worker
    echo 'keep_worker "$@"'
} > "$JOB_DIR/worker.sh"

trap '' USR1 USR2  # inherited by what is started here
(run dask scheduler --protocol tls --port 0 --dashboard-address :0 --scheduler-file "$DASK_SCHEDULER_FILE" \
    ${ADDRESS[@]+"${ADDRESS[@]}"} ${SCHEDULER_OPTIONS[@]+"${SCHEDULER_OPTIONS[@]}"} \
    > "$JOB_DIR/scheduler.log" 2>&1) &
SCHEDULER=$!
bash "$JOB_DIR/worker.sh" LEARNER 1 &
LEARNER=$!
(on_all_hosts bash "$JOB_DIR/worker.sh" ACTOR "$ACTORS_PER_HOST") &
ACTORS=$!
DRIVER_ARGUMENTS=(seedflow.cli train "$CONFIG")
CLUSTER=(runtime=cluster cluster.connect_seconds=300 cluster.worker_seconds=900 cluster.learner_seconds=600)
STEPS=("$LEARNER" "$ACTORS")

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
