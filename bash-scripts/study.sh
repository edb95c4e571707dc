#!/usr/bin/env bash
# Run a study on this machine: the tasks that submit_study.sh submits to a cluster, several at a time, each with a GPU
# of its own or a part of the processors. ^C lets the tasks save; the same command continues, and repeats failed tasks.
# --dry_run only shows the tasks, and tries each model on one image. Example:
#   bash bash-scripts/study.sh models_root_dir=/models log_dir=/models-logs n_processes=2 \
#       in1k_images_root=/data/in1k imagenet_images_root=/data/in21k \
#       cog_levels_mapping_file=levels.pkl cog_concepts_split_file=split.pkl model_names="sup_resnet50 dino_resnet50"

[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

# --- Variables to set: here, in the environment, or as name=value on the command line. ---
# Folder with <model_title>/<architecture_name>/model.ckpt; features and results are written beside the checkpoint.
models_root_dir="${models_root_dir:-None}"
# One name or several, separated by spaces; patterns such as deit_* match models under the root or in models_file. None:
# all of these models.
model_names="${model_names:-None}"
datasets="${datasets:-in1k cog_l1 cog_l2 cog_l3 cog_l4 cog_l5}"
seeds="${seeds:-22 37 45 77 93}"
# Training images per class; 0 stands for all.
shots="${shots:-0 1 2 4 8 16 32 64 128}"
in1k_images_root="${in1k_images_root:-None}"
# Images of IN-1K with faces blurred; to use them, add in1k_blurred to datasets.
in1k_blurred_images_root="${in1k_blurred_images_root:-None}"
imagenet_images_root="${imagenet_images_root:-None}"
cog_levels_mapping_file="${cog_levels_mapping_file:-None}"
cog_concepts_split_file="${cog_concepts_split_file:-None}"
# Images of your own data set, {train,test}/<class>/*; add the name of the data set to datasets.
images_root="${images_root:-None}"
# Loader of your own models: FILE.py:load_my_model.
model_loader="${model_loader:-None}"
# File with several of your own models (docs/own-models.md).
models_file="${models_file:-None}"
# Folder of logs, task lists, and at the end results.txt and report.html.
log_dir="${log_dir:-None}"
# Number of tasks at a time, which share the processors equally; None: one per GPU, or one without GPUs.
n_processes="${n_processes:-None}"
# -------------------------------------------------------------------------------------------

read_command_line "${study_variables[@]}" n_processes -- "$@"
run_study -- n_processes
