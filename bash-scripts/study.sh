#!/usr/bin/env bash
# Run a study on this machine: the tasks that submit_study.sh submits to a cluster, several at a time, each with a GPU
# of its own or a part of the processors. ^C lets the tasks save; the same command continues, and repeats failed tasks.
# --dry_run only shows the tasks, --check only verifies all inputs. Example:
#   bash bash-scripts/study.sh models_root_dir=/models log_dir=/models-logs n_processes=2 \
#       in1k_images_root=/data/in1k imagenet_images_root=/data/in21k \
#       cog_levels_mapping_file=levels.pkl cog_concepts_split_file=split.pkl model_names="sup_resnet50 dino_resnet50"

[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

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
# Tasks at a time; None: one per GPU, or one without. Without GPUs, each gets its part of the processors.
n_processes="${n_processes:-None}"
# GPUs to use, in turn; None: all that are visible.
gpu_ids="${gpu_ids:-None}"
# -------------------------------------------------------------------------------------------

read_command_line "${study_variables[@]}" n_processes gpu_ids -- "$@"
require models_root_dir log_dir
run_study -- n_processes gpu_ids
