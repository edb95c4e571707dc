#!/usr/bin/env bash
# Run experiments on the extracted features of one model or several, and print a table after each. Complete outputs are
# skipped. Name the experiments in the order in which to run them:
#   logreg      the protocol's classifiers, on all images
#   fewshot     the same on N images per class
#   mlp         an MLP instead of logistic regression; mlp_noact: an MLP without activation
#   pca         classifiers on the first principal components of the features
#   balanced    classifiers on at most max_per_class training images per class
#   label_free  clusters, alignment and uniformity, nearest neighbors, nearest class means
#   cross       confident predictions of the classifiers of trained_on on the other data sets
# Examples:
#   bash bash-scripts/experiments.sh logreg fewshot models_root_dir=/models model_name="sup_resnet50 dino_resnet50"
#   bash bash-scripts/experiments.sh label_free pca models_root_dir=/models datasets="in1k cog_l5" dims="64 256"

[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

# --- Variables to set: here, in the environment, or as name=value on the command line. ---
models_root_dir="${models_root_dir:-None}"
# One name or several, separated by spaces; likewise for data sets.
model_name="${model_name:-sup_resnet50}"
datasets="${datasets:-in1k cog_l1 cog_l2 cog_l3 cog_l4 cog_l5}"
seeds="${seeds:-22 37 45 77 93}"
shots="${shots:-1 2 4 8 16 32 64 128}"
# Numbers of principal components, at most the number of dimensions of the features.
dims="${dims:-32 64 128 256 512 1024}"
max_per_class="${max_per_class:-732}"
trained_on="${trained_on:-in1k}"
# -------------------------------------------------------------------------------------------

read_command_line models_root_dir model_name datasets seeds shots dims max_per_class trained_on -- "$@"
experiments=()
while [[ ${#flags[@]} -gt 0 && "${flags[0]}" != -* ]]; do
    [[ " logreg fewshot mlp mlp_noact pca balanced label_free cross " == *" ${flags[0]} "* ]] ||
        die "unknown experiment ${flags[0]}; --help lists all"
    experiments+=("${flags[0]}")
    flags=("${flags[@]:1}")
done
[[ ${#experiments[@]} -gt 0 ]] || die "name one experiment or several, see --help"

# classifiers SHOTS KEY VALUE...: train classifiers and print their averages.
classifiers() {
    run "${python}" "${repository}/logreg.py" --models_root_dir="${models_root_dir}" --model="${model}" \
        --dataset ${datasets} --seeds ${seeds} --n_shots $1 ${flags[@]+"${flags[@]}"} ${pairs[@]+"${pairs[@]}"} "${@:2}"
    run "${python}" "${repository}/print_results.py" --models_root_dir="${models_root_dir}" --model="${model}" \
        --dataset ${datasets} --seeds ${seeds} --n_shot $1 ${pairs[@]+"${pairs[@]}"} "${@:2}"
}

# analyses NAME FLAG...: run analyses and print their numbers.
analyses() {
    run "${python}" "${repository}/analyze_features.py" --models_root_dir="${models_root_dir}" --model="${model}" \
        --analysis "$@" ${flags[@]+"${flags[@]}"} ${pairs[@]+"${pairs[@]}"}
    run "${python}" "${repository}/print_results.py" --models_root_dir="${models_root_dir}" --model="${model}" \
        --dataset ${datasets} --analysis "$1"
}

for model in ${model_name}; do
    for experiment in "${experiments[@]}"; do
        echo "${experiment} of ${model}"
        case "${experiment}" in
            logreg) classifiers 0 ;;
            fewshot) classifiers "${shots}" ;;
            mlp | mlp_noact) classifiers 0 CLF.TYPE "${experiment}" ;;
            pca) for dim in ${dims}; do classifiers 0 CLF.PCA_DIM "${dim}"; done ;;
            balanced) classifiers 0 CLF.MAX_PER_CLASS "${max_per_class}" ;;
            label_free) analyses all --dataset ${datasets} ;;
            cross) analyses cross --trained_on "${trained_on}" --dataset $(printf '%s\n' ${datasets} | grep -vx "${trained_on}") ;;
        esac
    done
done
