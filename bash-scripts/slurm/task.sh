#!/usr/bin/env bash
# Run one task of a study under SLURM; submit_study.sh submits it. The task is a line of the task list: line n + 1 for
# task n of an array, the first line for other jobs. Lines are complete commands, which you can also run by hand.
#
# SLURM sends a warning before the time limit (USR1, only to this shell). This script forwards it to the command, which
# saves its work and ends with exit code 75; the task then queues itself again, at most MAX_REQUEUES times, and
# continues. SIGTERM is forwarded, too, but does not cause a requeue: its sender (scancel, a preemption) decides that.
#   task.sh TASK_LIST MAX_REQUEUES

[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
set -uo pipefail

task_list="$1"
max_requeues="${2:-0}"
# For an array, the number of the job alone would refer to all of its tasks.
job="${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}}"
job="${job:-${SLURM_JOB_ID:-}}"
restarts="${SLURM_RESTART_COUNT:-0}"

if ! line="$(sed -n "$((${SLURM_ARRAY_TASK_ID:-0} + 1))p" "${task_list}")" || [[ -z "${line}" || "${line}" == "#"* ]]; then
    echo "error: ${task_list} has no command for task ${SLURM_ARRAY_TASK_ID:-0}; submit the study again" >&2
    exit 2
fi
if ! eval "command=(${line})"; then
    echo "error: ${task_list} is damaged; submit the study again" >&2
    exit 2
fi

# If processes are not bound to processors, each would start a thread for every processor of the node.
if [[ -z "${OMP_NUM_THREADS:-}" && -n "${SLURM_CPUS_PER_TASK:-}" ]]; then
    export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK}"
fi
echo "$(date '+%F %T') job ${job}${restarts:+, restart ${restarts}} on $(hostname), GPUs '${CUDA_VISIBLE_DEVICES:-}': ${line}"

received=""
child=""
pass_on() {
    [[ "${received}" == "TERM" ]] || received="$1"
    [[ -z "${child}" ]] || kill -s "$1" "${child}" 2> /dev/null
}
trap 'pass_on TERM' TERM
trap 'pass_on USR1' USR1

[[ -n "${received}" ]] || { "${command[@]}" & child=$!; }
# The child has not received a signal that arrived between the test and its start.
[[ -z "${received}" || -z "${child}" ]] || kill -s "${received}" "${child}" 2> /dev/null
status=75
while [[ -n "${child}" ]]; do
    wait "${child}"
    status=$?
    # A trap ends the wait with a status above 128 while the child is still running.
    kill -0 "${child}" 2> /dev/null || break
done
# The signal ended the command before it could catch the signal, so that no work was begun.
if [[ -n "${received}" && (${status} -eq 143 || ${status} -eq 138) ]]; then
    status=75
fi
echo "$(date '+%F %T') exit code ${status}${received:+ after SIG${received}}"

if [[ ${status} -eq 75 && "${received}" != "TERM" && -n "${job}" ]]; then
    if [[ ${restarts} -lt ${max_requeues} ]]; then
        scontrol requeue "${job}" || echo "error: job ${job} could not be queued again; submit the study again" >&2
    elif [[ ${max_requeues} -gt 0 ]]; then
        echo "error: job ${job} was queued again ${restarts} times, max_requeues=${max_requeues}: a longer time limit" \
            "may be needed; submitting the study again continues" >&2
    fi
fi
exit "${status}"
