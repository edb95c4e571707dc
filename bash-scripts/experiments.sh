#!/usr/bin/env bash
# Experiments of both versions of the paper on extracted features, a table after each; complete outputs are skipped.
# Name those to run, in their order: logreg fewshot mlp mlp_noact balanced label_free confident figures. Example:
#   bash bash-scripts/experiments.sh logreg fewshot figures models_root_dir=/models model_name=sup_resnet50

[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
# --- Variables to set: here, in the environment, or as name=value on the command line. ---
models_root_dir="${models_root_dir:-None}"
model_name="${model_name:-sup_resnet50}"
dataset="${dataset:-in1k cog_l1 cog_l2 cog_l3 cog_l4 cog_l5}"
seeds="${seeds:-22 37 45 77 93}"
shots="${shots:-1 2 4 8 16 32 64 128}"
max_per_class="${max_per_class:-732}"
trained_on="${trained_on:-in1k}"

source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh" "$@"

which=(--models_root_dir="${models_root_dir}" --model ${model_name} --dataset ${dataset}) n_shot=0
train() { # KEY VALUE...: classifiers and their table
    local runs=("${which[@]}" --seeds ${seeds} --n_shot ${n_shot})
    run "${python}" "${repository}/logreg.py" "${runs[@]}" ${words[@]+"${words[@]}"} "$@"
    run "${python}" "${repository}/print_results.py" "${runs[@]}" ${pairs[@]+"${pairs[@]}"} "$@"
}
analyze() { # NAME FLAG...: analyses and their tables
    run "${python}" "${repository}/analyze_features.py" "${which[@]}" --analysis "$@" ${words[@]+"${words[@]}"}
    run "${python}" "${repository}/print_results.py" "${which[@]}" --analysis "$1"
}

logreg() { train; }                                        # Figs. 3 and 4, Tables 5 to 10
fewshot() { n_shot="${shots}" train; }                     # Fig. 5
mlp() { train CLF.TYPE mlp; }                              # v1, Fig. 10 and Table 3
mlp_noact() { train CLF.TYPE mlp_noact; }
balanced() { train CLF.MAX_PER_CLASS "${max_per_class}"; } # supplement
label_free() { analyze all; }                              # v1, Figs. 4 and 6, Table 6
confident() { # supplement A.3, Fig. 5: on other data sets than the classifiers'
    analyze confident --trained_on "${trained_on}" --dataset $(tr ', ' '\n\n' <<< "${dataset}" | grep -vx "${trained_on}")
}
figures() {
    run "${python}" "${repository}/print_results.py" --models_root_dir="${models_root_dir}" --model ${model_name} \
        --figures "${models_root_dir}/figures" --overwrite
}

all=" logreg fewshot mlp mlp_noact balanced label_free confident figures " experiments=()
while [[ ${#words[@]} -gt ${#pairs[@]} && "${words[0]}" != -* ]]; do
    [[ "${all}" == *" ${words[0]} "* ]] || die "unknown experiment ${words[0]}; expected some of:${all}"
    experiments+=("${words[0]}") words=("${words[@]:1}")
done
[[ ${#experiments[@]} -gt 0 ]] || die "name one experiment or several of:${all}"
for experiment in "${experiments[@]}"; do
    echo "${experiment} of ${model_name}"
    "${experiment}"
done
