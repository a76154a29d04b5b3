
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
