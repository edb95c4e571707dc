#!/usr/bin/env bash
# One task of a study, started by SLURM; submit_study.sh submits it. Runs the line of the task list that belongs to
# this task (line n + 1 is task n; a job that is no array runs the first). Lines are complete commands, which can be
# run by hand as well.
#
# SLURM's warning before the time limit (USR1, to this shell only) is passed on to the command, which saves and ends
# with exit code 75; the task then puts itself back into the queue, at most so many times, and continues there. SIGTERM
# is passed on, too, but never answered by a new start: whoever sends it (scancel, a preemption) decides that himself.
#   task.sh TASK_LIST MAX_REQUEUES

[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
set -uo pipefail

task_list="$1"
max_requeues="${2:-0}"
# In an array the number of the job alone would mean all of its tasks.
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

# Without a binding of processes to processors each would start a thread for every processor of the node.
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
# A signal that comes between the test and the start of the child would be lost to it.
[[ -z "${received}" || -z "${child}" ]] || kill -s "${received}" "${child}" 2> /dev/null
status=75
while [[ -n "${child}" ]]; do
    wait "${child}"
    status=$?
    # A trap ends the waiting with a status above 128 while the child goes on.
    kill -0 "${child}" 2> /dev/null || break
done
# Ended by the signal itself, before the command could catch it: nothing was begun.
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
