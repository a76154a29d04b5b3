
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
