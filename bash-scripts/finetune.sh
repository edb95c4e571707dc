#!/usr/bin/env bash
# Fine-tune a model on every data set, with one seed or several, and print the averages (the paper's Fig. 6 takes the
# differences to the classifiers on frozen features). Complete outputs are skipped; interrupted runs continue. Example:
#   bash bash-scripts/finetune.sh model_name=sup_resnet50 models_root_dir=/models n_processes=8 \
#       in1k_images_root=/data/in1k imagenet_images_root=/data/in21k \
#       cog_levels_mapping_file=levels.pkl cog_concepts_split_file=split.pkl FT_EXTRACT.N_WORKERS 12

[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

# --- Variables to set: here, in the environment, or as name=value on the command line. ---
model_name="${model_name:-sup_resnet50}"
# Folder with <model_title>/<architecture_name>/model.ckpt; results are written to <dataset>/eval_finetune/seed-<seed>/
# beside the checkpoint.
models_root_dir="${models_root_dir:-None}"
dataset="${dataset:-in1k cog_l1 cog_l2 cog_l3 cog_l4 cog_l5}"
seeds="${seeds:-22}"
# Number of processes on this machine, one per GPU.
n_processes="${n_processes:-1}"
in1k_images_root="${in1k_images_root:-None}"
# Images of IN-1K with faces blurred; to use them, add in1k_blurred to dataset.
in1k_blurred_images_root="${in1k_blurred_images_root:-None}"
imagenet_images_root="${imagenet_images_root:-None}"
cog_levels_mapping_file="${cog_levels_mapping_file:-None}"
cog_concepts_split_file="${cog_concepts_split_file:-None}"
# Loader of your own model: FILE.py:load_my_model.
model_loader="${model_loader:-None}"
# File with several of your own models (docs/own-models.md).
models_file="${models_file:-None}"
# Images of your own data set, {train,test}/<class>/*; add the name of the data set to dataset.
images_root="${images_root:-None}"
# -------------------------------------------------------------------------------------------

read_command_line model_name models_root_dir dataset seeds n_processes ${image_variables} model_loader models_file -- "$@"
require model_name models_root_dir dataset seeds
set_image_flags

n_steps=$(($(count_words ${dataset}) * $(count_words ${seeds})))
for seed in ${seeds}; do
    for dataset_ in ${dataset}; do
        run_step "fine-tuning ${model_name} on ${dataset_}, seed ${seed}" \
            "${python}" "${repository}/finetune.py" \
            --model="${model_name}" \
            --dataset="${dataset_}" \
            --models_root_dir="${models_root_dir}" \
            --model_loader="${model_loader}" \
            --models_file="${models_file}" \
            "${image_flags[@]}" \
            --n_processes="${n_processes}" \
            ${extra[@]+"${extra[@]}"} \
            EVAL.SEED "${seed}"
    done
done

print_results "Fine-tuned ${model_name}, average over seeds ${seeds}" \
    --models_root_dir="${models_root_dir}" \
    --model="${model_name}" \
    --dataset ${dataset} \
    --seeds ${seeds} \
    EVAL.NAME finetune \
    ${config_pairs[@]+"${config_pairs[@]}"}
