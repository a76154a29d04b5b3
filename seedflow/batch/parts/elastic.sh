
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
