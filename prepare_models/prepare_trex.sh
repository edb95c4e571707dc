#!/usr/bin/env bash
# Fetches the checkpoints of trex_resnet50, trexstar_resnet50.
#   bash prepare_models/prepare_trex.sh <models_root_dir> [--dry_run]
# Written from the declarations in cog/models/zoo.py by `python -m cog.models docs --write`.
[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../bash-scripts/common.sh"
export PYTHONPATH="${repository}${PYTHONPATH:+:${PYTHONPATH}}"
exec "${python}" -m cog.models download --script prepare_trex.sh -- "$@"
