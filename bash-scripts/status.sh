#!/usr/bin/env bash
# Show the progress of a study: features and classifier runs done, running, failed, interrupted and missing.
# Works with and without SLURM; with the log_dir of submit_study.sh, tasks in SLURM's queue are shown too. Examples:
#   bash bash-scripts/status.sh /models                    # or models_root_dir=/models, as for the other scripts
#   bash bash-scripts/status.sh /models --models sup_resnet50 'deit_*' --seeds 22 37 --shots 0 1 --format csv

[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

if [[ $# -eq 0 ]]; then
    die "no root of models: run bash bash-scripts/status.sh MODELS_ROOT"
fi
if [[ "$1" == "-h" || "$1" == "--help" ]]; then
    sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
    echo
elif [[ "$1" != -* ]]; then
    set -- --models_root_dir "${1#models_root_dir=}" "${@:2}"
fi
PYTHONPATH="${repository}${PYTHONPATH:+:${PYTHONPATH}}" exec "${python}" -m cog.commands.status "$@"
