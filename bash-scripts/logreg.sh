#!/usr/bin/env bash
# Train classifiers with five seeds, and print the averages; complete outputs are skipped. Examples:
#   bash bash-scripts/logreg.sh models_root_dir=/models model_name=sup_resnet50 dataset=cog_l5
#   bash bash-scripts/logreg.sh train_features_dir=A test_features_dir=B output_dir=C CLF.N_TRIALS 30

[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
# --- Variables to set: here, in the environment, or as name=value on the command line. ---
# The root of all models, with models and data sets (separated by spaces or commas), or two folders of features.
models_root_dir="${models_root_dir:-None}"
model_name="${model_name:-sup_resnet50}"
dataset="${dataset:-None}"
train_features_dir="${train_features_dir:-None}"
test_features_dir="${test_features_dir:-None}"
# Results: <output_dir>[_N<n_shot>]/seed-<seed>/. None: <dataset>/eval_logreg[_N<n_shot>]/ beside the features.
output_dir="${output_dir:-None}"
seeds="${seeds:-22 37 45 77 93}"
# Training images per class, one or several numbers; 0: all.
shots="${shots:-0}"

source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh" "$@"
which=(--models_root_dir="${models_root_dir}" --model ${model_name} --dataset ${dataset} --seeds ${seeds})
run "${python}" "${repository}/logreg.py" "${which[@]}" --train_features_dir="${train_features_dir}" \
    --test_features_dir="${test_features_dir}" --output_dir="${output_dir}" --n_shot ${shots} ${words[@]+"${words[@]}"}
for n_shot in ${shots//,/ }; do
    shown=("${which[@]}" --n_shot "${n_shot}") folder="${output_dir%/}_N${n_shot/all/0}"
    [[ "${output_dir}" == "None" ]] || shown=(--logreg_root_dir="${folder%_N0}" --seeds ${seeds})
    echo "Average over seeds ${seeds}, N = ${n_shot} (0: all images):"
    run "${python}" "${repository}/print_results.py" "${shown[@]}" ${pairs[@]+"${pairs[@]}"}
done
