
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
