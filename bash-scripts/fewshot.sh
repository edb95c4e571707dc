#!/usr/bin/env bash
# Train classifiers on N images per class, for several N with five seeds each, and print the averages.
# Complete outputs are skipped. Examples:
#   bash bash-scripts/fewshot.sh models_root_dir=/models model_name=sup_resnet50 dataset=cog_l5
#   bash bash-scripts/fewshot.sh models_root_dir=/models dataset="cog_l1 cog_l5" shots="1 8" seeds="22 37"

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
# Results are written to <output_dir>_N<n_shot>/seed-<seed>/ (several data sets: <output_dir>/<dataset>_N<n_shot>/...).
# None, with models_root_dir: to <dataset>/eval_logreg_N<n_shot>/seed-<seed>/ beside the features.
output_dir="${output_dir:-None}"
seeds="${seeds:-22 37 45 77 93}"
shots="${shots:-1 2 4 8 16 32 64 128}"
# -------------------------------------------------------------------------------------------

read_command_line models_root_dir model_name dataset train_features_dir test_features_dir output_dir seeds shots -- "$@"

for name in ${dataset}; do
    train_classifiers "${name}" "$(output_of "${name}")" --n_shots ${shots}
done
for name in ${dataset}; do
    for n_shot in ${shots}; do
        output="$(output_of "${name}")"
        [[ "${output}" == "None" ]] || output+="_N${n_shot}"
        print_averages "${name}" "${output}" CLF.N_SHOT "${n_shot}"
    done
done
