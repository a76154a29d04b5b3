JOB_ID=$SLURM_JOB_ID
INDEX=${SLURM_ARRAY_TASK_ID:-}
SUBMIT_DIR=$SLURM_SUBMIT_DIR
LAST_WORDS=()  # Slurm announces the end itself: --signal

# The same job again, under the same number, once this one has ended.
start_again() {
    scontrol requeue "$SLURM_JOB_ID"
}
