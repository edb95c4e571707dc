#!/usr/bin/env bash
# Train classifiers on the first principal components of the features, for several numbers of components with five
# seeds each, and print the averages. What is complete is skipped. Examples:
#   bash bash-scripts/pca.sh models_root_dir=/models model_name=sup_resnet50 dataset=cog_l5
#   bash bash-scripts/pca.sh models_root_dir=/models dataset="in1k cog_l5" dims="64 256" seeds="22 37"

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# --- Variables to set: here, from the environment, or as name=value on the command line. ---
# Either the root of all models, a model and a data set (or several, separated by spaces) ...
models_root_dir="${models_root_dir:-None}"
model_name="${model_name:-sup_resnet50}"
dataset="${dataset:-None}"
# ... or two folders that hold X_Y.pth each.
train_features_dir="${train_features_dir:-None}"
test_features_dir="${test_features_dir:-None}"
# Results go to <output_dir>_pca<dim>/seed-<seed>/ (several data sets: <output_dir>/<dataset>_pca<dim>/...).
# Optional with models_root_dir: default <dataset>/eval_logreg_pca<dim>/seed-<seed>/ beside the features.
output_dir="${output_dir:-None}"
seeds="${seeds:-22 37 45 77 93}"
# Numbers of components; at most as many as the features have dimensions.
dims="${dims:-32 64 128 256 512 1024}"
# -------------------------------------------------------------------------------------------

read_command_line models_root_dir model_name dataset train_features_dir test_features_dir output_dir seeds dims \
    -- "$@"

n_datasets=$(count_words ${dataset})
n_steps=$((n_datasets * $(count_words ${dims})))
# output_of DATASET DIM
output_of() {
    if [[ "${output_dir}" == "None" ]]; then
        echo "None"
    elif [[ ${n_datasets} -gt 1 ]]; then
        echo "${output_dir}/$1_pca$2"
    else
        echo "${output_dir}_pca$2"
    fi
}
# One process per data set and number of components: the components are computed once for all seeds.
for dataset_ in ${dataset}; do
    for dim in ${dims}; do
        run_step "logreg on ${dim} components of ${dataset_}, seeds ${seeds}" \
            "${python}" "${repository}/logreg.py" \
            --models_root_dir="${models_root_dir}" \
            --model="${model_name}" \
            --dataset="${dataset_}" \
            --train_features_dir="${train_features_dir}" \
            --test_features_dir="${test_features_dir}" \
            --output_dir="$(output_of "${dataset_}" "${dim}")" \
            --seeds ${seeds} \
            --skip_complete \
            ${extra[@]+"${extra[@]}"} \
            CLF.PCA_DIM "${dim}"
    done
done

for dataset_ in ${dataset}; do
    for dim in ${dims}; do
        echo "Average over seeds ${seeds}: ${dataset_}, ${dim} components"
        "${python}" "${repository}/print_results.py" \
            --logreg_root_dir="$(output_of "${dataset_}" "${dim}")" \
            --models_root_dir="${models_root_dir}" \
            --model="${model_name}" \
            --dataset="${dataset_}" \
            --seeds ${seeds} \
            ${config_pairs[@]+"${config_pairs[@]}"} \
            CLF.PCA_DIM "${dim}"
    done
done
