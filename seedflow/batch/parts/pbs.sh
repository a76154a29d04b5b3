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
