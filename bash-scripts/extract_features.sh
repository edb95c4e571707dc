#!/usr/bin/env bash
# Extract the features of IN-1K and the five CoG levels with one model.
# The network is loaded once; complete outputs are skipped. Example:
#   bash bash-scripts/extract_features.sh model_name=sup_resnet50 models_root_dir=/models \
#       in1k_images_root=/data/in1k imagenet_images_root=/data/in21k \
#       cog_levels_mapping_file=levels.pkl cog_concepts_split_file=split.pkl FT_EXTRACT.N_WORKERS 16

[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

# --- Variables to set: here, in the environment, or as name=value on the command line. ---
model_name="${model_name:-sup_resnet50}"
# Folder with <model_title>/<architecture_name>/model.ckpt; features are written beside the checkpoint.
models_root_dir="${models_root_dir:-None}"
in1k_images_root="${in1k_images_root:-None}"
# Images of IN-1K with faces blurred; to use them, add in1k_blurred to datasets.
in1k_blurred_images_root="${in1k_blurred_images_root:-None}"
imagenet_images_root="${imagenet_images_root:-None}"
cog_levels_mapping_file="${cog_levels_mapping_file:-None}"
cog_concepts_split_file="${cog_concepts_split_file:-None}"
# Images of your own data set, {train,test}/<class>/*; add the name of the data set to datasets.
images_root="${images_root:-None}"
# Checkpoint and output folder outside of models_root_dir (features: <output_dir>/<dataset>/features_<split>/).
ckpt_file="${ckpt_file:-None}"
output_dir="${output_dir:-None}"
# Loader of your own model: FILE.py:load_my_model.
model_loader="${model_loader:-None}"
# File with several of your own models (docs/own-models.md).
models_file="${models_file:-None}"
datasets="${datasets:-in1k cog_l1 cog_l2 cog_l3 cog_l4 cog_l5}"
splits="${splits:-test train}"
# -------------------------------------------------------------------------------------------

images=(in1k_images_root in1k_blurred_images_root imagenet_images_root cog_levels_mapping_file cog_concepts_split_file
    images_root)
read_command_line model_name models_root_dir "${images[@]}" ckpt_file output_dir model_loader models_file datasets \
    splits -- "$@"

# extract DATASETS SPLITS OUTPUT_DIR
extract() {
    local name places=()
    for name in "${images[@]}"; do
        places+=("--${name}=${!name}")
    done
    run "${python}" "${repository}/extract_features.py" \
        --model="${model_name}" \
        --dataset $1 \
        --split $2 \
        --models_root_dir="${models_root_dir}" \
        --ckpt_file="${ckpt_file}" \
        --output_dir="$3" \
        --model_loader="${model_loader}" \
        --models_file="${models_file}" \
        "${places[@]}" ${flags[@]+"${flags[@]}"} ${pairs[@]+"${pairs[@]}"}
}

if [[ "${output_dir}" == "None" ]]; then
    extract "${datasets}" "${splits}" None
else
    for dataset in ${datasets}; do
        for split in ${splits}; do
            extract "${dataset}" "${split}" "${output_dir}/${dataset}/features_${split}"
        done
    done
fi
