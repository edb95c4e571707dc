#!/usr/bin/env bash
# Extract the features of IN-1K and the five CoG levels with one model or several; complete outputs are skipped.
#   bash bash-scripts/extract_features.sh model_name=sup_resnet50 models_root_dir=/models \
#       in1k_images_root=/data/in1k imagenet_images_root=/data/in21k \
#       cog_levels_mapping_file=levels.pkl cog_concepts_split_file=split.pkl FT_EXTRACT.N_WORKERS 16

[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
# --- Variables to set: here, in the environment, or as name=value on the command line. ---
model_name="${model_name:-sup_resnet50}"
dataset="${dataset:-in1k cog_l1 cog_l2 cog_l3 cog_l4 cog_l5}"
splits="${splits:-test train}"
models_root_dir="${models_root_dir:-None}"
in1k_images_root="${in1k_images_root:-None}"
imagenet_images_root="${imagenet_images_root:-None}"
cog_levels_mapping_file="${cog_levels_mapping_file:-None}"
cog_concepts_split_file="${cog_concepts_split_file:-None}"
# Images of a data set of your own, {train,test}/<class>/*, whose name you give as dataset, or of in1k_blurred.
images_root="${images_root:-None}"
# Your own model: FILE.py:load_my_model, or a file with several of them (docs/own-models.md).
model_loader="${model_loader:-None}"
models_file="${models_file:-None}"

source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh" "$@"
exec "${python}" "${repository}/extract_features.py" --model ${model_name} --dataset ${dataset} --split ${splits} ${words[@]+"${words[@]}"}
