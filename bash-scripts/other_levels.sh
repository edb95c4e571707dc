#!/usr/bin/env bash
# Levels by other similarities and random draws beside the published ones (paper, Fig. 7): build them from the same
# concepts, print their overlap, and, with models_root_dir, train classifiers on the existing features in these
# groups, print the table and draw the figure. Complete outputs are skipped. Examples:
#   bash bash-scripts/other_levels.sh levels=levels.pkl image_counts=fall11_image_counts.csv output_dir=other_levels
#   bash bash-scripts/other_levels.sh levels=levels.pkl image_counts=fall11_image_counts.csv output_dir=other_levels \
#       embeddings=enwiki_300d.txt models_root_dir=/models model_name=sup_resnet50

[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

# --- Variables to set: here, in the environment, or as name=value on the command line. ---
# File of the published levels; their concepts are ranked again (supplement D).
levels="${levels:-None}"
# All concepts of ImageNet-21K, which span the taxonomy: a CSV file of image counts, or a list of WordNet ids.
image_counts="${image_counts:-None}"
concepts="${concepts:-None}"
# WordNet ids of the concepts on which the networks were trained; None: the 1000 of IN-1K.
seen_wnids="${seen_wnids:-None}"
output_dir="${output_dir:-None}"
# Values of --similarity of build_levels.py.
measures="${measures:-wup jcn}"
# File of word vectors, for levels by these vectors; None: no such levels.
embeddings="${embeddings:-None}"
# Number of random draws of one level.
draws="${draws:-15}"
# Folder of models with features of in1k and of the levels; None: only levels and overlap.
models_root_dir="${models_root_dir:-None}"
model_name="${model_name:-sup_resnet50}"
seeds="${seeds:-22 37 45 77 93}"
# -------------------------------------------------------------------------------------------

read_command_line levels image_counts concepts seen_wnids output_dir measures embeddings draws models_root_dir model_name \
    seeds -- "$@"
require levels output_dir
[[ "${draws}" =~ ^[0-9]+$ ]] || die "draws=${draws} is not a whole number"
[[ "${embeddings}" == "None" ]] || measures="${measures} embedding"

n_steps=$(($(count_words ${measures}) + draws + 1))
[[ "${models_root_dir}" == "None" ]] || n_steps=$((n_steps + $(count_words ${model_name}) * 2 + 1))

# build NAME FLAG...: build the levels of one kind.
build() {
    run_step "levels: $1" \
        "${python}" "${repository}/build_levels.py" \
        --rerank="${levels}" \
        --image_counts="${image_counts}" \
        --concepts="${concepts}" \
        --seen_wnids="${seen_wnids}" \
        --output_dir="${output_dir}/levels/$1" \
        "${@:2}"
}

folders=()
for measure in ${measures}; do
    vectors=()
    [[ "${measure}" != "embedding" ]] || vectors=(--embeddings="${embeddings}")
    build "${measure}" --similarity="${measure}" ${vectors[@]+"${vectors[@]}"}
    folders+=("${output_dir}/levels/${measure}")
done
for ((draw = 1; draw <= draws; draw++)); do
    build "random${draw}" --similarity=random --seed="${draw}" --n_levels=1
    folders+=("${output_dir}/levels/random${draw}")
done
run_step "overlap" "${python}" "${repository}/build_levels.py" --overlap "${levels}" ${folders[@]+"${folders[@]}"}
[[ "${models_root_dir}" != "None" ]] || exit 0

export PYTHONPATH="${repository}${PYTHONPATH:+:${PYTHONPATH}}"
results="${output_dir}/models"
for model in ${model_name}; do
    run_step "features of ${model} on other levels" \
        "${python}" -m cog other_levels \
        --models_root_dir="${models_root_dir}" \
        --model="${model}" \
        --levels_dir="${output_dir}/levels" \
        --output_dir="${results}" \
        ${config_pairs[@]+"${config_pairs[@]}"}
    datasets=()
    for folder in "${results}/${model%%_*}/${model#*_}"/*/features_train; do
        datasets+=("$(basename "$(dirname "${folder}")")")
    done
    run_step "classifiers of ${model} on ${#datasets[@]} data sets" \
        bash "${repository}/bash-scripts/logreg.sh" \
        models_root_dir="${results}" \
        model_name="${model}" \
        dataset="${datasets[*]}" \
        seeds="${seeds}" \
        ${extra[@]+"${extra[@]}"}
done
for model in ${model_name}; do
    "${python}" -m cog other_levels --models_root_dir="${models_root_dir}" --model="${model}" --output_dir="${results}" \
        ${config_pairs[@]+"${config_pairs[@]}"}
done
run_step "figure" "${python}" "${repository}/print_results.py" --models_root_dir="${results}" --model ${model_name} \
    --figures="${output_dir}/figures" --figure_names fig7 --overwrite
