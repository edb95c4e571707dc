#!/usr/bin/env bash
# Install everything and run the whole benchmark on a generated miniature: a control experiment with a known
# answer that needs no download of images or networks. Existing outputs are reused. Examples:
#   bash bash-scripts/quickstart.sh
#   bash bash-scripts/quickstart.sh output_dir=another-world world_seed=1

[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/setup.sh"

# --- Variables to set: here, in the environment, or as name=value on the command line. ---
output_dir="${output_dir:-${repository}/cog-quickstart}"
seeds="${seeds:-22 37}"
shots="${shots:-1 4}"
# Seed of the miniature; another seed gives other siblings, appearances and images, and needs another output_dir.
world_seed="${world_seed:-0}"
# Numbers of training and test images per concept. Smaller numbers take less time, give less certain results, and need
# another output_dir, too.
images_per_concept="${images_per_concept:-80 50}"
# Number of trials of each classifier's search; the protocol has 30.
n_trials="${n_trials:-30}"
# -------------------------------------------------------------------------------------------

read_command_line output_dir seeds shots world_seed images_per_concept n_trials -- "$@"
[[ ${#flags[@]} -eq 0 && ${#pairs[@]} -eq 0 ]] || die "unknown argument ${flags[0]-${pairs[0]-}}; see --help"
[[ "${images_per_concept}" =~ ^([1-9][0-9]*)\ +([1-9][0-9]*)$ ]] ||
    die "images_per_concept=${images_per_concept}: expected two numbers, such as '80 50'"
n_train="${BASH_REMATCH[1]}" n_test="${BASH_REMATCH[2]}"

ensure_environment
ensure_wordnet
mkdir -p "${output_dir}/logs" || die "cannot write into output_dir=${output_dir}; give another one"
output_dir="$(cd "${output_dir}" && pwd)"
cd "${repository}"

# With one thread per process, sums, and therefore the trained network, are the same on any number of processors, and no
# thread waits for a busy processor. As many processes run at a time as there are processors; at most 4 share a GPU.
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
n_jobs="$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc 2> /dev/null || getconf _NPROCESSORS_ONLN 2> /dev/null || echo 1)"
if nvidia-smi -L > /dev/null 2>&1 && [[ ${n_jobs} -gt 4 ]]; then
    n_jobs=4
fi
step_number=0
step() {
    step_number=$((step_number + 1))
    echo
    echo "[${step_number}/5] $* (after ${SECONDS} s)"
}

# run_job JOB WORD...: run a job with a log of its own.
run_job() {
    local name="$*"
    local log="${output_dir}/logs/${name// /-}.log"
    if ! "$@" > "${log}" 2>&1 < /dev/null; then
        tail -n 15 "${log}" >&2
        exit 255 # xargs starts no further job
    fi
    echo "  done: ${name}"
}

# features MODEL DATASET: extract the features of both splits.
features() {
    "${python}" extract_features.py --model "$1" --dataset "$2" --split train test --models_root_dir "${models}" \
        --model_loader cog/miniature/loader.py:load_my_model --models_file "${output_dir}/models.yaml" \
        --in1k_images_root "${output_dir}/in1k" --imagenet_images_root "${output_dir}/in21k" \
        --cog_levels_mapping_file "${levels}/cog_levels_mapping_file.pkl" \
        --cog_concepts_split_file "${levels}/cog_concepts_split_file.pkl" \
        FT_EXTRACT.IMAGE_RESIZE_SIZE 64 FT_EXTRACT.IMAGE_CROP_SIZE 64 FT_EXTRACT.N_WORKERS 0
}

# classifiers MODEL DATASET N...: train classifiers on N images per concept, 0 for all.
classifiers() {
    "${python}" logreg.py --model "$1" --dataset "$2" --models_root_dir "${models}" --n_shots "${@:3}" \
        --seeds ${seeds} CLF.N_TRIALS "${n_trials}"
}

# in_parallel: run the jobs on the lines of standard input, ${n_jobs} at a time; stop at the first failure.
in_parallel() {
    xargs -P "${n_jobs}" -L 1 bash -c 'run_job "$@"' bash ||
        die "stopped in step ${step_number}; all logs: ${output_dir}/logs. The same command continues"
}

models="${output_dir}/models"
levels="${output_dir}/levels"
export python output_dir models levels seeds n_trials
export -f run_job features classifiers

cat << EOF
The miniature: images of 144 WordNet concepts are drawn. What a concept looks like is inherited from its hypernym,
with a change at each step, so that concepts close in WordNet look alike. A small network learns 24 concepts (boats,
ships, scarves, trousers ...); 120 others form five levels by falling similarity to these. What to expect:
  - the trained network is best on the concepts it has seen, above every level;
  - accuracy tends to fall from level 1 (siblings of what it has seen) to level 5 (snakes, conifers);
  - it is far above the same network left untrained, for which all levels are about equally hard.
Everything is written to ${output_dir}; about 4 minutes on 2 processors.
EOF

step "Draw the images"
"${python}" -m cog.miniature make --output_dir "${output_dir}" --seed "${world_seed}" \
    --n_train "${n_train}" --n_test "${n_test}"

step "Build the levels"
if [[ -f "${levels}/report.json" ]]; then
    echo "${levels} exists"
else
    # All concepts have the same number of images; the paper's list of discarded concepts applies only to photographs.
    : > "${output_dir}/discarded_wnids.txt"
    "${python}" build_levels.py --imagenet_images_root "${output_dir}/in21k" --output_dir "${levels}" \
        --image_counts "${output_dir}/image_counts.csv" --seen_wnids "${output_dir}/seen_wnids.txt" \
        --discarded_wnids "${output_dir}/discarded_wnids.txt" \
        --n_levels 5 --level_size 24 LEVELS.MIN_IMAGES "$((n_train + n_test))" LEVELS.N_TEST "${n_test}"
fi

[[ -f "${output_dir}/overview.png" ]] || "${python}" -m cog.miniature overview --output_dir "${output_dir}"

step "Train the network on the seen concepts"
"${python}" -m cog.miniature train --output_dir "${output_dir}"
# The pretraining data of the two networks: the seen concepts only, or none.
printf '%s: {pretraining: IN-1K}\n' miniature_convnet miniature_random > "${output_dir}/models.yaml"

step "Extract features of the trained and the untrained network, ${n_jobs} jobs at a time"
printf 'features %s\n' miniature_{convnet,random}" "{in1k,cog_l{1,2,3,4,5}} | in_parallel

step "Train classifiers on all images and on ${shots} per concept, ${n_jobs} jobs at a time"
{
    printf "classifiers %s 0 ${shots}\n" miniature_convnet" "{in1k,cog_l{1,2,3,4,5}}
    printf 'classifiers %s 0\n' miniature_random" "{in1k,cog_l{1,2,3,4,5}}
} | in_parallel
report="${output_dir}/report.html"
"${python}" print_results.py --models_root_dir "${models}" --seeds ${seeds} --report "${report}" --overwrite
echo
status=0
"${python}" -m cog.miniature check --output_dir "${output_dir}" || status=$?
[[ ${status} -le 1 ]] || exit "${status}"
[[ ${status} -eq 0 ]] ||
    die "the results are not what they must be (see above); please report this with the folder ${output_dir}/logs"
cat << EOF

Done in ${SECONDS} s. Next:
  open ${report} in a browser: tables, figures, warnings
  look at ${output_dir}/overview.png: all concepts in one picture
  evaluate a model of your own in three steps: README.md
EOF
[[ ! -f "${python%/*}/activate" ]] || echo "  use the environment of this quickstart: source ${python%/*}/activate"
