#!/usr/bin/env bash
# Fetches the checkpoints of sup_resnet50, sup_resnet152, sup_inception-v3, sup_vgg19, sup_alexnet, sup_vgg16.
#   bash prepare_models/prepare_sup.sh <models_root_dir> [--dry_run]
# Written from the declarations in cog/models/zoo.py by `python -m cog.models docs --write`.
[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../bash-scripts/common.sh"
export PYTHONPATH="${repository}${PYTHONPATH:+:${PYTHONPATH}}"
exec "${python}" -m cog.models download --script prepare_sup.sh -- "$@"
