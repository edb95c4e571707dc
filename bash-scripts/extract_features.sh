#!/usr/bin/env bash
# Extract the features of IN-1K and the five CoG levels with one model.
# The network is loaded once; complete outputs are skipped. Example:
#   bash bash-scripts/extract_features.sh model_name=sup_resnet50 models_root_dir=/models \
#       in1k_images_root=/data/in1k imagenet_images_root=/data/in21k \
#       cog_levels_mapping_file=levels.pkl cog_concepts_split_file=split.pkl FT_EXTRACT.N_WORKERS 16

[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

# --- Variables to set: here, from the environment, or as name=value on the command line. ---
model_name="${model_name:-sup_resnet50}"
# Holds <model_title>/<architecture_name>/model.ckpt; features are written beside it.
models_root_dir="${models_root_dir:-None}"
in1k_images_root="${in1k_images_root:-None}"
# IN-1K with faces blurred; name it in datasets: in1k_blurred.
in1k_blurred_images_root="${in1k_blurred_images_root:-None}"
imagenet_images_root="${imagenet_images_root:-None}"
cog_levels_mapping_file="${cog_levels_mapping_file:-None}"
cog_concepts_split_file="${cog_concepts_split_file:-None}"
# A checkpoint elsewhere, and an output folder elsewhere (<output_dir>/<dataset>/features_<split>/).
ckpt_file="${ckpt_file:-None}"
output_dir="${output_dir:-None}"
# A model of your own: FILE.py:load_my_model.
model_loader="${model_loader:-None}"
# Or many of them in one file (docs/own-models.md).
models_file="${models_file:-None}"
# A data set of your own: holds {train,test}/<class>/*; name it in datasets.
images_root="${images_root:-None}"
datasets="${datasets:-in1k cog_l1 cog_l2 cog_l3 cog_l4 cog_l5}"
splits="${splits:-test train}"
# Processes on this machine that share the work, one GPU each.
n_processes="${n_processes:-1}"
# -------------------------------------------------------------------------------------------

read_command_line model_name models_root_dir ${image_variables} ckpt_file output_dir model_loader models_file datasets \
    splits n_processes -- "$@"
require model_name datasets splits
set_image_flags
[[ "${n_processes}" =~ ^[1-9][0-9]*$ ]] || die "n_processes=${n_processes} is not a number of processes"
launch=("${python}")
if [[ "${n_processes}" -gt 1 ]]; then
    launch=(env "PYTHONPATH=${repository}${PYTHONPATH:+:${PYTHONPATH}}" "${python}" -m cog.runtime.launch "${n_processes}")
fi

# extract DATASETS SPLITS OUTPUT_DIR: one process, which loads the network once.
extract() {
    run_step "features of ${model_name}: $1 $2" \
        "${launch[@]}" "${repository}/extract_features.py" \
        --model="${model_name}" \
        --dataset $1 \
        --split $2 \
        --models_root_dir="${models_root_dir}" \
        --ckpt_file="${ckpt_file}" \
        --output_dir="$3" \
        --model_loader="${model_loader}" \
        --models_file="${models_file}" \
        "${image_flags[@]}" \
        --skip_complete \
        ${extra[@]+"${extra[@]}"}
}

if [[ "${output_dir}" == "None" ]]; then
    n_steps=1
    extract "${datasets}" "${splits}" None
else
    n_steps=$(($(count_words ${datasets}) * $(count_words ${splits})))
    for dataset in ${datasets}; do
        for split in ${splits}; do
            extract "${dataset}" "${split}" "${output_dir}/${dataset}/features_${split}"
        done
    done
fi
