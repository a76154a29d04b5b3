JOB_ID=$LSB_JOBID
INDEX=${LSB_JOBINDEX:-0}
if [ "$INDEX" = 0 ]; then INDEX=; fi
SUBMIT_DIR=${LS_SUBCWD:-$PWD}
LAST_WORDS=()  # LSF announces the end itself: -wa, -wt

# LSF does it by itself for exit code 75: -Q.
start_again() {
    return 0
}
