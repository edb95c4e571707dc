#!/usr/bin/env bash
# Put the finished classifier runs of each model and data set into one file, runs.zip: a study of 45 runs per data set
# has some 3,400 files and folders per model before, and 130 after. All commands read packed runs like others, and any
# zip program can open the file. --unpack puts the runs back, bit for bit; --check only reads, and prints what would be
# done. Packing is possible at any time, also while commands run: only finished runs are packed. Examples:
#   bash bash-scripts/pack.sh models_root_dir=/models
#   bash bash-scripts/pack.sh models_root_dir=/models model_names="sup_resnet50 deit_*" datasets=cog_l5 --unpack

[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

# --- Variables to set: here, in the environment, or as name=value on the command line. ---
# Folder with <model_title>/<architecture_name>/<dataset>/eval_*/seed-*.
models_root_dir="${models_root_dir:-None}"
# One name or several, separated by spaces; patterns such as deit_* match folders under the root. None: all models under
# the root.
model_names="${model_names:-None}"
# None: all data sets of each model.
datasets="${datasets:-None}"
# YAML file of your own models, whose labels are names, too, or None.
models_file="${models_file:-None}"
# -------------------------------------------------------------------------------------------

read_command_line models_root_dir model_names datasets models_file -- "$@"
require models_root_dir
set -f # patterns in model_names refer to folders under the root, not to files in the current folder
PYTHONPATH="${repository}${PYTHONPATH:+:${PYTHONPATH}}" exec "${python}" -m cog.commands.pack \
    --models_root_dir="${models_root_dir}" --models ${model_names} --datasets ${datasets} \
    --models_file="${models_file}" ${extra[@]+"${extra[@]}"}
