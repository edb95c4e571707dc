#!/usr/bin/env bash
# Train classifiers on the first principal components of the features, for several numbers of components with five
# seeds each, and print the averages. Complete outputs are skipped. Examples:
#   bash bash-scripts/pca.sh models_root_dir=/models model_name=sup_resnet50 dataset=cog_l5
#   bash bash-scripts/pca.sh models_root_dir=/models dataset="in1k cog_l5" dims="64 256" seeds="22 37"

[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

# --- Variables to set: here, in the environment, or as name=value on the command line. ---
# Either the root of all models, a model and a data set (or several, separated by spaces) ...
models_root_dir="${models_root_dir:-None}"
model_name="${model_name:-sup_resnet50}"
dataset="${dataset:-None}"
# ... or two folders with one X_Y.pth each.
train_features_dir="${train_features_dir:-None}"
test_features_dir="${test_features_dir:-None}"
# Results are written to <output_dir>_pca<dim>/seed-<seed>/ (several data sets: <output_dir>/<dataset>_pca<dim>/...).
# None, with models_root_dir: to <dataset>/eval_logreg_pca<dim>/seed-<seed>/ beside the features.
output_dir="${output_dir:-None}"
seeds="${seeds:-22 37 45 77 93}"
# Numbers of components, at most the number of dimensions of the features.
dims="${dims:-32 64 128 256 512 1024}"
# -------------------------------------------------------------------------------------------

read_command_line "${classifier_variables[@]}" dims -- "$@"
require_features

n_steps=$((n_datasets * $(count_words ${dims})))
# output_with DATASET DIM: print the output folder of the classifiers on this number of components.
output_with() {
    local folder
    folder="$(output_of "$1")"
    [[ "${folder}" == "None" ]] || folder+="_pca$2"
    echo "${folder}"
}
# One process per data set and number of components: the components are computed once for all seeds.
for dataset_ in ${dataset}; do
    for dim in ${dims}; do
        train_classifiers "logreg on ${dim} components of ${dataset_}, seeds ${seeds}" \
            "${dataset_}" "$(output_with "${dataset_}" "${dim}")" CLF.PCA_DIM "${dim}"
    done
done

for dataset_ in ${dataset}; do
    for dim in ${dims}; do
        print_classifiers "Average over seeds ${seeds}: ${dataset_}, ${dim} components" \
            "${dataset_}" "$(output_with "${dataset_}" "${dim}")" CLF.PCA_DIM "${dim}"
    done
done
