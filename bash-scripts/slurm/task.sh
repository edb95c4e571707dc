#!/usr/bin/env bash
# Run a task of a study under SLURM; study.sh submits it: task.sh TASKS_FILE PYTHON SCRIPT FLAGS...
# Line SLURM_ARRAY_TASK_ID names kind, data set and models. By "exec" the script itself gets the warning before the
# time limit (USR1): it saves, queues itself again and ends with exit code 75.
[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
trap '' USR1 # until the script can catch it: an ignored signal stays ignored over "exec"

tasks_file="$1" python="$2" script="$3"
shift 3
read -r kind dataset models <<< "$(sed -n "${SLURM_ARRAY_TASK_ID}p" "${tasks_file}")"
[[ -n "${models}" ]] ||
    { echo "error: ${tasks_file} has no task in line ${SLURM_ARRAY_TASK_ID}; submit the study again" >&2; exit 2; }
# If processes are not bound to processors, each would start a thread for every processor of the node.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}"
echo "$(date '+%F %T') job ${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID} on $(hostname), start $((${SLURM_RESTART_COUNT:-0} + 1)):" \
    "${kind} ${dataset} ${models}"
exec "${python}" "${script}" --dataset "${dataset}" --model ${models} "$@"
