
# Runs a command once on every host of the job, the host of this script included.
on_all_hosts() {
    local components=()
    if [ -n "${SLURM_HET_SIZE:-}" ]; then components=("--het-group=0-$((SLURM_HET_SIZE - 1))"); fi
    exec srun ${components[@]+"${components[@]}"} --overlap --mem=0 --cpu-bind=none --export=ALL \
        --no-kill --kill-on-bad-exit=0 "$@"
}
