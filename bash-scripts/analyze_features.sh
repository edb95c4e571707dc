#!/usr/bin/env bash
# Analyse the features of IN-1K and the five CoG levels without training classifiers: k-means, alignment and
# uniformity, nearest neighbors, nearest class means. Complete outputs are skipped. Examples:
#   bash bash-scripts/analyze_features.sh models_root_dir=/models model_name=sup_resnet50
#   bash bash-scripts/analyze_features.sh models_root_dir=/models model_name="sup_resnet50 dino_resnet50" analyses=knn

[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

# --- Variables to set: here, in the environment, or as name=value on the command line. ---
# Either the root of all models, a model (or several, separated by spaces) and data sets ...
models_root_dir="${models_root_dir:-None}"
model_name="${model_name:-sup_resnet50}"
datasets="${datasets:-in1k cog_l1 cog_l2 cog_l3 cog_l4 cog_l5}"
# ... or two folders with one X_Y.pth each, and output_dir.
train_features_dir="${train_features_dir:-None}"
test_features_dir="${test_features_dir:-None}"
# Results are written to <output_dir>[/<model>][/<dataset>]/analysis_<name>/ (with several models and data sets).
# None, with models_root_dir: to <dataset>/analysis_<name>/ beside the features.
output_dir="${output_dir:-None}"
# all: kmeans alignment knn ncm
analyses="${analyses:-all}"
# -------------------------------------------------------------------------------------------

read_command_line models_root_dir model_name datasets train_features_dir test_features_dir output_dir analyses -- "$@"
if [[ "${train_features_dir}" == "None" && "${test_features_dir}" == "None" ]]; then
    require models_root_dir model_name datasets
fi

n_models=$(count_words ${model_name})
n_steps=${n_models}
given_datasets=(--datasets ${datasets})
if [[ "${train_features_dir}" != "None" || "${test_features_dir}" != "None" ]]; then
    given_datasets=()
    model_name="None"
    n_steps=1
fi
# One process per model: the features of every data set are read once for all analyses.
for model_ in ${model_name}; do
    output_of_model="${output_dir}"
    if [[ "${output_dir}" != "None" && ${n_models} -gt 1 ]]; then
        output_of_model="${output_dir}/${model_}"
    fi
    run_step "analyses of ${model_}: ${analyses}" \
        "${python}" "${repository}/analyze_features.py" \
        --analysis ${analyses} \
        --models_root_dir="${models_root_dir}" \
        --model="${model_}" \
        ${given_datasets[@]+"${given_datasets[@]}"} \
        --train_features_dir="${train_features_dir}" \
        --test_features_dir="${test_features_dir}" \
        --output_dir="${output_of_model}" \
        ${extra[@]+"${extra[@]}"}
done
