#!/usr/bin/env bash
# Levels by other similarities and random draws beside the published ones (paper, Fig. 7): build them from the same
# concepts, print their overlap, and, with models_root_dir, train classifiers on the features in these groups. Example:
#   bash bash-scripts/other_levels.sh levels=levels.pkl image_counts=fall11_image_counts.csv output_dir=other_levels \
#       embeddings=enwiki_300d.txt models_root_dir=/models model_name=sup_resnet50

[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
# --- Variables to set: here, in the environment, or as name=value on the command line. ---
# The published levels, image counts of all of ImageNet-21K, and ids of the seen concepts; None: the 1000 of IN-1K.
levels="${levels:-None}"
image_counts="${image_counts:-None}"
seen_wnids="${seen_wnids:-None}"
output_dir="${output_dir:-None}"
# Values of --similarity of build_levels.py; a file of word vectors, or None; number of random draws of one level.
measures="${measures:-wup jcn}"
embeddings="${embeddings:-None}"
draws="${draws:-15}"
# Folder of models with features of in1k and of the levels; None: only levels and overlap.
models_root_dir="${models_root_dir:-None}"
model_name="${model_name:-sup_resnet50}"
seeds="${seeds:-22 37 45 77 93}"

source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh" "$@"
built=()
build() { # NAME FLAG...: build the levels of one kind, once
    built+=("${output_dir}/levels/$1")
    [[ ! -f "${output_dir}/levels/$1/report.json" ]] || return 0
    run "${python}" "${repository}/build_levels.py" --rerank="${levels}" --image_counts="${image_counts}" \
        --seen_wnids="${seen_wnids}" --output_dir="${output_dir}/levels/$1" "${@:2}"
}
for measure in ${measures}; do build "${measure}" --similarity="${measure}"; done
[[ "${embeddings}" == "None" ]] || build embedding --similarity="${embeddings}"
for ((n = 1; n <= draws; n++)); do build "random${n}" --similarity=random --n_levels=1 EVAL.SEED "${n}"; done
run "${python}" "${repository}/build_levels.py" --compare "${levels}" ${built[@]+"${built[@]}"}
[[ "${models_root_dir}" != "None" ]] || exit 0

exec "${python}" -P -m cog other_levels --models_root_dir="${models_root_dir}" --model ${model_name} --seeds ${seeds} \
    --levels_dir="${output_dir}/levels" --output_dir="${output_dir}/models" ${words[@]+"${words[@]}"}
