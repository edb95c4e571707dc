#!/usr/bin/env bash
# Install everything and run the whole benchmark on a generated miniature, a control experiment with a known answer.
# Existing outputs are reused. Examples:
#   bash bash-scripts/quickstart.sh
#   bash bash-scripts/quickstart.sh output_dir=another-world world_seed=1

[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
# --- Variables to set: here, in the environment, or as name=value on the command line. ---
# Folder of everything; None: cog-quickstart in the repository.
output_dir="${output_dir:-None}"
seeds="${seeds:-22 37}"
shots="${shots:-1 4}"
# Seed of the miniature, and numbers of training and test images per concept; others need another output_dir.
world_seed="${world_seed:-0}"
images_per_concept="${images_per_concept:-80 50}"
n_trials="${n_trials:-30}"

source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/setup.sh" "$@"
[[ ${#words[@]} -eq 0 ]] || die "unknown argument ${words[0]}; see --help"
read -r n_train n_test <<< "${images_per_concept}"
ensure_environment
ensure_wordnet
[[ "${output_dir}" != "None" ]] || output_dir="${repository}/cog-quickstart"
mkdir -p "${output_dir}/logs" || die "cannot write into output_dir=${output_dir}; give another one"
output_dir="$(cd "${output_dir}" && pwd)"
levels="${output_dir}/levels"
cd "${repository}"
unset log_dir dataset # the scripts read these, too
export models_root_dir="${output_dir}/models" models_file="${output_dir}/models.yaml"
export model_loader=cog/miniature/network.py:load_my_model
export in1k_images_root="${output_dir}/in1k" imagenet_images_root="${output_dir}/in21k"
export cog_levels_mapping_file="${levels}/cog_levels_mapping_file.pkl"
export cog_concepts_split_file="${levels}/cog_concepts_split_file.pkl"
# With one thread per process, a trained network is the same on any number of processors. At most 4 tasks share a GPU.
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
n_jobs="$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc 2> /dev/null || echo 1)"
! nvidia-smi -L > /dev/null 2>&1 || [[ ${n_jobs} -le 4 ]] || n_jobs=4
extraction="FT_EXTRACT.N_WORKERS 0 FT_EXTRACT.IMAGE_RESIZE_SIZE 64 FT_EXTRACT.IMAGE_CROP_SIZE 64"

step() { echo -e "\n[$1/5] ${*:2} (after ${SECONDS} s)"; }
untrained() { # SCRIPT ARGUMENTS...: of its log, errors are shown
    run "${python}" "$1" --model miniature_random --dataset in1k cog_l1 cog_l2 cog_l3 cog_l4 cog_l5 "${@:2}" \
        2> >(tee -a "${output_dir}/logs/untrained.txt" | grep "^error" >&2) > /dev/null
}

echo "Images of 144 WordNet concepts are drawn; those close in WordNet look alike. A small network learns 24 of them;
120 others form five levels by falling similarity to these. It should be best on what it has seen, worse from level 1
to 5, and far above the same network left untrained. All is written to ${output_dir}, in a few minutes on 2 processors."
step 1 "Draw the images"
run "${python}" -m cog miniature make --output_dir "${output_dir}" --seed "${world_seed}" \
    --n_train "${n_train}" --n_test "${n_test}"
step 2 "Build the levels"
: > "${output_dir}/discarded_wnids.txt" # the paper's list is about photographs
[[ -f "${levels}/report.json" ]] ||
    run "${python}" build_levels.py --imagenet_images_root "${imagenet_images_root}" --output_dir "${levels}" \
        --image_counts "${output_dir}/image_counts.csv" --seen_wnids "${output_dir}/seen_wnids.txt" \
        --discarded_wnids "${output_dir}/discarded_wnids.txt" \
        --n_levels 5 --level_size 24 LEVELS.MIN_IMAGES "$((n_train + n_test))" LEVELS.N_TEST "${n_test}"
step 3 "Train the network on the seen concepts; the untrained one is tested beside this and the next step"
printf '%s: {pretraining: IN-1K}\n' miniature_convnet miniature_random > "${models_file}"
(trap - INT && untrained extract_features.py --split train test ${extraction} &&
    untrained logreg.py --seeds ${seeds} CLF.N_TRIALS "${n_trials}") &
beside=$!
trap 'kill "${beside}" 2> /dev/null || true' EXIT
run "${python}" -m cog miniature train --output_dir "${output_dir}"
step 4 "Test the trained network: its features, and classifiers on all images and on ${shots} per concept"
run "${python}" -m cog study --log_dir "${output_dir}/logs" --model miniature_convnet --n_shot 0 ${shots//,/ } \
    --seeds ${seeds} --n_processes "${n_jobs}" CLF.N_TRIALS "${n_trials}" ${extraction} > "${output_dir}/logs/study.txt"
wait "${beside}" || exit $?
trap - EXIT
step 5 "Compare the results with the known answer"
report="${output_dir}/report.html"
run "${python}" print_results.py --models_root_dir "${models_root_dir}" --seeds ${seeds} --report "${report}" --overwrite
"${python}" -m cog miniature check --output_dir "${output_dir}" ||
    die "the results are not what they must be (see above); please report this with the folder ${output_dir}/logs"
echo "Done in ${SECONDS} s. Open ${report} in a browser, and ${output_dir}/overview.png: all concepts in one picture."
[[ ! -f "${python%/*}/activate" ]] || echo "The environment of this quickstart: source ${python%/*}/activate"
