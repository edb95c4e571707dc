#!/usr/bin/env bash
# Run a study: features of every model on every data set, then classifiers, then the table of results. On this machine,
# n_processes tasks at a time, each with a GPU of its own or a part of the processors; with --slurm, submitted to SLURM.
# Only what is missing is done: run it again after interruptions and failures, for more seeds or more models.
# --dry_run shows what would be run; --limit 2 tries everything on a few images, in seconds. Examples:
#   bash bash-scripts/study.sh models_root_dir=/models log_dir=/models-logs model_names="sup_resnet50 dino_resnet50" \
#       in1k_images_root=/data/in1k imagenet_images_root=/data/in21k \
#       cog_levels_mapping_file=levels.pkl cog_concepts_split_file=split.pkl
#   bash bash-scripts/study.sh --slurm sbatch_args="--partition=gpu --cpus-per-task=8" throttle=32 models_root_dir=...

[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

# --- Variables to set: here, in the environment, or as name=value on the command line. ---
# Folder with <model_title>/<architecture_name>/model.ckpt; features and results are written beside the checkpoint.
models_root_dir="${models_root_dir:-None}"
# Folder of logs, the list of tasks, and at the end results.txt and report.html; None: <models_root_dir>/study-logs.
log_dir="${log_dir:-None}"
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
# Number of tasks at a time on this machine, which share the processors equally; None: one per GPU, or one without GPUs.
n_processes="${n_processes:-None}"
# --- SLURM ---
# GPUs per task (0: none), and the largest number of tasks of a job array at the same time.
gpus="${gpus:-None}"
throttle="${throttle:-None}"
# Arguments of sbatch for all jobs, and further ones for one kind of jobs.
sbatch_args="${sbatch_args:-None}"
extract_sbatch_args="${extract_sbatch_args:-None}"
logreg_sbatch_args="${logreg_sbatch_args:-None}"
# -------------------------------------------------------------------------------------------

single=(models_root_dir log_dir in1k_images_root in1k_blurred_images_root imagenet_images_root cog_levels_mapping_file
    cog_concepts_split_file images_root model_loader models_file n_processes gpus throttle sbatch_args
    extract_sbatch_args logreg_sbatch_args)
read_command_line model_names datasets seeds shots "${single[@]}" -- "$@"
for name in "${single[@]}"; do
    flags+=("--${name}=${!name}")
done
set -f # patterns in model_names refer to folders under the root, not to files in the current folder
exec "${python}" -m cog.commands.study --models ${model_names} --datasets ${datasets} \
    --seeds ${seeds} --shots ${shots} "${flags[@]}" ${pairs[@]+"${pairs[@]}"}
