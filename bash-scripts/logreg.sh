#!/usr/bin/env bash
# Train classifiers on all training images with five seeds, and print the averages.
# Complete outputs are skipped. Examples:
#   bash bash-scripts/logreg.sh models_root_dir=/models model_name=sup_resnet50 dataset=cog_l5
#   bash bash-scripts/logreg.sh train_features_dir=A test_features_dir=B output_dir=C CLF.N_TRIALS 30

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
# Results are written to <output_dir>/seed-<seed>/ (several data sets: <output_dir>/<dataset>/seed-<seed>/).
# None, with models_root_dir: to <dataset>/eval_logreg/seed-<seed>/ beside the features.
output_dir="${output_dir:-None}"
seeds="${seeds:-22 37 45 77 93}"
# -------------------------------------------------------------------------------------------

read_command_line models_root_dir model_name dataset train_features_dir test_features_dir output_dir seeds -- "$@"

for name in ${dataset}; do
    train_classifiers "${name}" "$(output_of "${name}")"
done
for name in ${dataset}; do
    print_averages "${name}" "$(output_of "${name}")"
done
