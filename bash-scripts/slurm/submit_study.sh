#!/usr/bin/env bash
# Submit a study to SLURM: features of every model on every data set, then classifiers, then the table of results.
# Only missing tasks are submitted, and none twice: run it again after failures, for more seeds or more models.
# --dry_run only shows task lists and commands, --check only verifies all inputs. Example:
#   bash bash-scripts/slurm/submit_study.sh models_root_dir=/models log_dir=/models-logs partition=gpu throttle=32 \
#       in1k_images_root=/data/in1k imagenet_images_root=/data/in21k cpus=8 extract_time=12:00:00 \
#       cog_levels_mapping_file=levels.pkl cog_concepts_split_file=split.pkl model_names="sup_resnet50 dino_resnet50"

[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../common.sh"

# --- Variables to set: here, from the environment, or as name=value on the command line. ---
# Holds <model_title>/<architecture_name>/model.ckpt; features and results are written beside it.
models_root_dir="${models_root_dir:-None}"
# Several, separated by spaces; patterns such as deit_* mean models under the root or in models_file. None: all of them.
model_names="${model_names:-None}"
datasets="${datasets:-in1k cog_l1 cog_l2 cog_l3 cog_l4 cog_l5}"
splits="${splits:-train test}"
seeds="${seeds:-22 37 45 77 93}"
# Training images per class; 0 stands for all.
shots="${shots:-0 1 2 4 8 16 32 64 128}"
in1k_images_root="${in1k_images_root:-None}"
# IN-1K with faces blurred; name it in datasets: in1k_blurred.
in1k_blurred_images_root="${in1k_blurred_images_root:-None}"
imagenet_images_root="${imagenet_images_root:-None}"
cog_levels_mapping_file="${cog_levels_mapping_file:-None}"
cog_concepts_split_file="${cog_concepts_split_file:-None}"
# A data set of your own: holds {train,test}/<class>/*; name it in datasets.
images_root="${images_root:-None}"
# Models of your own: FILE.py:load_my_model.
model_loader="${model_loader:-None}"
# Or many of them in one file (docs/own-models.md).
models_file="${models_file:-None}"
# Logs, task lists, and in the end results.txt and report.html.
log_dir="${log_dir:-None}"
stages="${stages:-extract logreg results}"
# One extraction task: both splits of a data set with the network loaded once (dataset), or a split (split).
extract_task="${extract_task:-dataset}"
# One classifier task: all runs of a data set with the features loaded once (dataset), or those of a seed (seed), of a
# number of shots (shot), or a single one (run).
logreg_task="${logreg_task:-dataset}"
# Further arguments of one script only, such as "--allow_failures 10". All others: at the end of the command line.
extract_args="${extract_args:-None}"
logreg_args="${logreg_args:-None}"
# --- SLURM; None leaves the choice to the cluster. ---
partition="${partition:-None}"
account="${account:-None}"
qos="${qos:-None}"
constraint="${constraint:-None}"
# GPUs (0: none) and processors per process, memory per task.
gpus="${gpus:-1}"
cpus="${cpus:-None}"
mem="${mem:-None}"
extract_time="${extract_time:-None}"
logreg_time="${logreg_time:-None}"
# Processes that share an extraction task, each with GPUs of its own (srun).
ranks_per_task="${ranks_per_task:-1}"
# Tasks of a kind that run at the same time (%N of an array).
throttle="${throttle:-None}"
# Whether an interrupted task is queued again, how often at most, and how long before the time limit it gets a signal.
requeue="${requeue:-yes}"
max_requeues="${max_requeues:-100}"
signal_seconds="${signal_seconds:-120}"
# Numbers in one array; None: SLURM's MaxArraySize.
max_array_size="${max_array_size:-None}"
# Further arguments of sbatch: of all jobs, and of one kind.
sbatch_args="${sbatch_args:-None}"
extract_sbatch_args="${extract_sbatch_args:-None}"
logreg_sbatch_args="${logreg_sbatch_args:-None}"
results_sbatch_args="${results_sbatch_args:-None}"
# -------------------------------------------------------------------------------------------

slurm_variables=(partition account qos constraint gpus cpus mem extract_time logreg_time ranks_per_task throttle requeue
    max_requeues signal_seconds max_array_size sbatch_args extract_sbatch_args logreg_sbatch_args results_sbatch_args)
read_command_line "${study_variables[@]}" "${slurm_variables[@]}" -- "$@"
require models_root_dir log_dir
run_study --slurm -- "${slurm_variables[@]}"
