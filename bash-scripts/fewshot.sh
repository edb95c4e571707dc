#!/usr/bin/env bash
# logreg.sh on N images per class, for several N; its variables and arguments. Example:
#   bash bash-scripts/fewshot.sh models_root_dir=/models dataset="cog_l1 cog_l5" shots="1 8" seeds="22 37"

[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
# --- Variables to set: here, in the environment, or as name=value on the command line. ---
models_root_dir="${models_root_dir:-None}"
model_name="${model_name:-sup_resnet50}"
dataset="${dataset:-None}"
seeds="${seeds:-22 37 45 77 93}"
shots="${shots:-1 2 4 8 16 32 64 128}"

exec bash "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/logreg.sh" models_root_dir="${models_root_dir}" \
    model_name="${model_name}" dataset="${dataset}" seeds="${seeds}" shots="${shots}" "$@"
