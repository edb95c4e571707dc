#!/usr/bin/env bash
# Downloads checkpoints to <models_root_dir>/<model_title>/<architecture_name>/model.ckpt, with a table at the end.
#   bash prepare_models/prepare.sh <models_root_dir> MODEL... [--dry_run]
# `python -m cog models list` prints the models.
[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../bash-scripts/common.sh"
exec "${python}" -P -m cog models fetch ${words[@]+"${words[@]}"}
