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

variables="output_dir seeds shots world_seed images_per_concept n_trials"
for argument in "$@"; do
    case "${argument}" in
        output_dir=* | seeds=* | shots=* | world_seed=* | images_per_concept=* | n_trials=*)
            printf -v "${argument%%=*}" '%s' "${argument#*=}"
            ;;
        -h | --help)
            sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
            echo "Variables: ${variables}"
            exit 0
            ;;
        *) fail "unknown argument ${argument}; expected name=value with one of: ${variables}" ;;
    esac
done

[[ "${images_per_concept}" =~ ^([1-9][0-9]*)\ +([1-9][0-9]*)$ ]] ||
    fail "images_per_concept=${images_per_concept}: expected two numbers, such as '80 50'"
n_train="${BASH_REMATCH[1]}" n_test="${BASH_REMATCH[2]}"
[[ "${n_trials}" =~ ^[1-9][0-9]*$ ]] || fail "n_trials=${n_trials}: expected a number of 1 or more"

ensure_environment
ensure_wordnet
export COG_PYTHON="${python}"

mkdir -p "${output_dir}/logs" || fail "cannot write into output_dir=${output_dir}; give another one"
output_dir="$(cd "${output_dir}" && pwd)"
cd "${repository}"

# With one thread per process, sums, and therefore the trained network, are the same on any number of processors, and no
# thread waits for a busy processor. If there are two processors, two processes run at the same time.
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
n_cpus="$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc 2> /dev/null || getconf _NPROCESSORS_ONLN 2> /dev/null || echo 1)"
n_jobs=$((n_cpus >= 2 ? 2 : 1))
started=${SECONDS}
step_number=0
n_steps=7

step() {
    step_number=$((step_number + 1))
    echo
    echo "[${step_number}/${n_steps}] $* (after $((SECONDS - started)) s)"
}

# in_parallel LOG_PREFIX NAME:COMMAND...: run the commands, at most n_jobs at the same time, each with its own log;
# print the last lines of the logs at intervals; stop all commands at the first failure.
in_parallel() {
    local prefix="$1" job next=0 last=${SECONDS} failed=""
    shift
    local -a names=() commands=() pids=() logs=()
    for job in "$@"; do
        names+=("${job%%:*}")
        commands+=("${job#*:}")
    done
    stop_jobs() {
        local pid
        for pid in ${pids[@]+"${pids[@]}"}; do
            [[ -z "${pid}" ]] || kill -- "-${pid}" 2> /dev/null || true
        done
    }
    trap 'stop_jobs; exit 130' INT TERM HUP
    while :; do
        local running=0 index
        for index in "${!pids[@]}"; do
            if [[ -n "${pids[index]}" ]]; then
                if kill -0 "${pids[index]}" 2> /dev/null; then
                    running=$((running + 1))
                else
                    wait "${pids[index]}" || failed="${index}"
                    pids[index]=""
                    [[ -z "${failed}" ]] || break 2
                fi
            fi
        done
        while [[ ${running} -lt ${n_jobs} && ${next} -lt ${#commands[@]} ]]; do
            logs[next]="${output_dir}/logs/${prefix}-${names[next]}.log"
            # Job control gives each command a process group, which can be stopped with all its children.
            set -m
            bash -c "${commands[next]}" > "${logs[next]}" 2>&1 < /dev/null &
            pids[next]=$!
            set +m
            next=$((next + 1))
            running=$((running + 1))
        done
        [[ ${running} -gt 0 ]] || break
        if [[ $((SECONDS - last)) -ge 15 ]]; then
            last=${SECONDS}
            for index in "${!pids[@]}"; do
                [[ -z "${pids[index]}" ]] ||
                    echo "      $((SECONDS - started)) s, ${names[index]}: $(tail -n 1 "${logs[index]}" | cut -c 1-90)"
            done
        fi
        sleep 0.2
    done
    trap - INT TERM HUP
    if [[ -n "${failed}" ]]; then
        stop_jobs
        tail -n 15 "${logs[failed]}" >&2
        fail "stopped in step ${step_number} (${prefix}, ${names[failed]}); the whole log: ${logs[failed]}." \
            "Complete outputs are kept: run the same command again to continue"
    fi
}

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
levels_dir="${output_dir}/levels"
if [[ -f "${levels_dir}/report.json" ]]; then
    echo "${levels_dir} exists"
else
    # All concepts have the same number of images; the paper's list of discarded concepts applies only to photographs.
    : > "${output_dir}/discarded_wnids.txt"
    "${python}" build_levels.py --imagenet_images_root "${output_dir}/in21k" --output_dir "${levels_dir}" \
        --image_counts "${output_dir}/image_counts.csv" --seen_wnids "${output_dir}/seen_wnids.txt" \
        --concepts "${output_dir}/concepts.txt" --discarded_wnids "${output_dir}/discarded_wnids.txt" \
        --n_levels 5 --level_size 24 LEVELS.MIN_IMAGES "$((n_train + n_test))" LEVELS.N_TEST "${n_test}"
fi
[[ -f "${output_dir}/overview.png" ]] ||
    "${python}" -m cog.miniature overview --output_dir "${output_dir}" \
        --cog_levels_mapping_file "${levels_dir}/cog_levels_mapping_file.pkl"
echo "All concepts in one picture: ${output_dir}/overview.png; why a concept is in its level: ${levels_dir}/levels.csv"

datasets="in1k cog_l1 cog_l2 cog_l3 cog_l4 cog_l5"
export models_root_dir="${output_dir}/models"
export model_loader="${repository}/cog/miniature/loader.py:load_my_model"
# The file states the pretraining data of the two networks: the seen concepts only, or none.
export models_file="${output_dir}/models.yaml"
printf '%s: {pretraining: IN-1K}\n' miniature_convnet miniature_random > "${models_file}"
export in1k_images_root="${output_dir}/in1k"
export imagenet_images_root="${output_dir}/in21k"
export cog_levels_mapping_file="${levels_dir}/cog_levels_mapping_file.pkl"
export cog_concepts_split_file="${levels_dir}/cog_concepts_split_file.pkl"

# Commands for in_parallel. Paths are exported, so that they may contain any character. The variable output_dir of the
# drivers has another meaning and is unset for them, so that results are written beside the features.
export output_dir python
train() {
    echo "\"\${python}\" -m cog.miniature train --output_dir \"\${output_dir}\" --model $1"
}
extract() {
    echo "output_dir=None bash bash-scripts/extract_features.sh model_name=$1 datasets='${datasets}' splits='$2' --device cpu" \
        "FT_EXTRACT.IMAGE_RESIZE_SIZE 64 FT_EXTRACT.IMAGE_CROP_SIZE 64 FT_EXTRACT.N_WORKERS 0"
}
logreg() {
    echo "output_dir=None bash bash-scripts/logreg.sh model_name=$1 dataset='$2' seeds=$3 --device cpu CLF.N_TRIALS ${n_trials}"
}
fewshot() {
    echo "output_dir=None bash bash-scripts/fewshot.sh model_name=$1 dataset='$2' seeds=$3 shots='${shots}' --device cpu" \
        "CLF.N_TRIALS ${n_trials}"
}

step "Train the network on the seen concepts; meanwhile, features of the untrained network"
in_parallel train \
    "network:$(train miniature_convnet)" \
    "control:$(train miniature_random) && $(extract miniature_random "train test")"
tail -n 2 "${output_dir}/logs/train-network.log"

step "Extract features of the network: 6 data sets, 2 splits"
in_parallel features \
    "train:$(extract miniature_convnet train)" \
    "test:$(extract miniature_convnet test)"

step "Train classifiers on all images: both networks, seeds ${seeds}"
jobs=()
for seed in ${seeds}; do
    jobs+=("seed-${seed}:$(logreg miniature_convnet "${datasets}" "${seed}")")
done
for seed in ${seeds}; do
    jobs+=("control-seed-${seed}:$(logreg miniature_random "${datasets}" "${seed}")")
done
in_parallel logreg "${jobs[@]}"

step "Train classifiers on few images: N = ${shots}, seeds ${seeds}"
jobs=()
for seed in ${seeds}; do
    jobs+=("seed-${seed}:$(fewshot miniature_convnet "${datasets}" "${seed}")")
done
in_parallel fewshot "${jobs[@]}"

step "Results: top-1 accuracy in percent, mean +- standard deviation over seeds"
"${python}" print_results.py --models_root_dir "${models_root_dir}" --seeds ${seeds}
echo
report="${output_dir}/report.html"
"${python}" print_results.py --models_root_dir "${models_root_dir}" --seeds ${seeds} --report "${report}" --overwrite
status=0
"${python}" -m cog.miniature check --output_dir "${output_dir}" || status=$?
[[ ${status} -le 1 ]] || exit "${status}"
if [[ ${status} -eq 1 ]]; then
    fail "the results are not what they must be (see above); please report this with the folder ${output_dir}/logs"
fi
echo
echo "Done in $((SECONDS - started)) s. The report with tables, figures and warnings, to open in a browser:"
echo "  ${report}"
