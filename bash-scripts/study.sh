#!/usr/bin/env bash
# Run a study: features of every model on every data set, then classifiers, then the table of results; here, or with
# slurm="SBATCH_ARGS" on SLURM. Only what is missing is done: run it again after interruptions and failures, for more
# seeds or models. --dry_run shows what would be run, and tries each model on one image. Examples:
#   bash bash-scripts/study.sh models_root_dir=/models model_name="sup_resnet50 deit_*" in1k_images_root=/in1k \
#       imagenet_images_root=/in21k cog_levels_mapping_file=levels.pkl cog_concepts_split_file=split.pkl
#   bash bash-scripts/study.sh models_root_dir=/models slurm="--partition=gpu --gres=gpu:1 --cpus-per-task=8"

[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
# --- Variables to set: here, in the environment, or as name=value on the command line. ---
# Those of extract_features.sh; model_name: names and patterns (deit_*), None: all under the root or in models_file.
models_root_dir="${models_root_dir:-None}"
model_name="${model_name:-None}"
dataset="${dataset:-in1k cog_l1 cog_l2 cog_l3 cog_l4 cog_l5}"
seeds="${seeds:-22 37 45 77 93}"
shots="${shots:-0 1 2 4 8 16 32 64 128}"
in1k_images_root="${in1k_images_root:-None}"
imagenet_images_root="${imagenet_images_root:-None}"
cog_levels_mapping_file="${cog_levels_mapping_file:-None}"
cog_concepts_split_file="${cog_concepts_split_file:-None}"
images_root="${images_root:-None}"
model_loader="${model_loader:-None}"
models_file="${models_file:-None}"
# Logs, the list of tasks, and at the end results.txt and report.html; None: <models_root_dir>/study-logs.
log_dir="${log_dir:-None}"
# Tasks at a time on this machine; None: one per GPU, without GPUs as many as processors and memory allow.
n_processes="${n_processes:-None}"
# Arguments of sbatch; None: run here.
slurm="${slurm:-None}"

source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh" "$@"
[[ "${slurm}" == "None" ]] || words=(--slurm="${slurm}" ${words[@]+"${words[@]}"})
exec "${python}" -P -m cog study --model ${model_name} --dataset ${dataset} --seeds ${seeds} --n_shot ${shots} \
    --n_processes="${n_processes}" ${words[@]+"${words[@]}"}
