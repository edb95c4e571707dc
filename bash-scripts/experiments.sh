#!/usr/bin/env bash
# Run every experiment and print them side by side: logistic regression with all images and with few, neighbors,
# clusters, alignment, components, MLPs, balanced classes, confident errors on other data sets and, when named,
# fine-tuning. Complete outputs are skipped; after more seeds, add --overwrite to cross (experiments=cross --overwrite).
#   bash bash-scripts/experiments.sh models_root_dir=/models model_name="sup_resnet50 dino_resnet50" max_per_class=732
#   bash bash-scripts/experiments.sh models_root_dir=/models experiments="label_free pca" datasets="in1k cog_l5"
#   bash bash-scripts/experiments.sh models_root_dir=/models model_name=dino_resnet50 \
#       experiments=all n_processes=8 in1k_images_root=/data/in1k \
#       imagenet_images_root=/data/in21k cog_levels_mapping_file=levels.pkl cog_concepts_split_file=split.pkl

[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

# --- Variables to set: here, in the environment, or as name=value on the command line. ---
models_root_dir="${models_root_dir:-None}"
# One name or several, separated by spaces; likewise for data sets.
model_name="${model_name:-sup_resnet50}"
datasets="${datasets:-in1k cog_l1 cog_l2 cog_l3 cog_l4 cog_l5}"
# Some of logreg fewshot label_free cross pca balanced mlp mlp_noact finetune, or all.
# Experiments that would take more than a day on this machine are left out, unless you name them here.
default_experiments="logreg fewshot label_free cross pca balanced mlp mlp_noact"
experiments="${experiments:-${default_experiments}}"
seeds="${seeds:-22 37 45 77 93}"
shots="${shots:-1 2 4 8 16 32 64 128}"
# Numbers of principal components; numbers above the dimensions of a model's features are left out.
dims="${dims:-32 64 128 256 512 1024}"
# Largest number of training images per class in the balanced experiment.
max_per_class="${max_per_class:-732}"
# Data set whose classifiers are applied to the test images of the other data sets.
trained_on="${trained_on:-in1k}"
# Images for fine-tuning, which also needs the level files.
in1k_images_root="${in1k_images_root:-None}"
in1k_blurred_images_root="${in1k_blurred_images_root:-None}"
imagenet_images_root="${imagenet_images_root:-None}"
cog_levels_mapping_file="${cog_levels_mapping_file:-None}"
cog_concepts_split_file="${cog_concepts_split_file:-None}"
# Loader of your own model, for fine-tuning: FILE.py:load_my_model.
model_loader="${model_loader:-None}"
# File with several of your own models (docs/own-models.md).
models_file="${models_file:-None}"
# Seeds of fine-tuning (one run takes long), and number of its processes on this machine, one per GPU.
finetune_seeds="${finetune_seeds:-22}"
n_processes="${n_processes:-1}"
# -------------------------------------------------------------------------------------------

read_command_line models_root_dir model_name datasets experiments seeds shots dims max_per_class trained_on \
    ${image_variables} model_loader models_file finetune_seeds n_processes -- "$@"
require models_root_dir model_name datasets experiments

others=()
for dataset in ${datasets}; do
    [[ "${dataset}" == "${trained_on}" ]] || others+=("${dataset}")
done
all_experiments="logreg fewshot label_free cross pca balanced mlp mlp_noact finetune"
# With the default or "all", no experiment is named explicitly: those that would take more than a day are left out.
named="yes"
[[ "${experiments}" != "${default_experiments}" ]] || named=""
[[ "${experiments}" != "all" ]] || { named="" && experiments="${all_experiments}"; }

kept=()
for experiment in ${experiments}; do
    case "${experiment}" in
        logreg | fewshot | label_free | pca | balanced | mlp | mlp_noact | finetune) kept+=("${experiment}") ;;
        cross)
            if [[ ${#others[@]} -eq 0 || " ${datasets} " != *" ${trained_on} "* ]]; then
                echo "left out: cross (needs ${trained_on}, the data set trained_on, and another one in datasets)" >&2
            else
                kept+=(cross)
            fi
            ;;
        *) die "unknown experiment ${experiment}; expected all or some of: ${all_experiments}" ;;
    esac
done

# fitting_dims MODEL: print the numbers of dims that do not exceed the width of the model's features; all numbers if the
# width is not known or there are no features yet.
fitting_dims() {
    local width dim fitting=""
    width="$(PYTHONPATH="${repository}" "${python}" -c '
import sys
from cog.features.folder import FeatureFolder
from cog.paths import ModelDir

root, model, dataset = sys.argv[1:]
print((FeatureFolder(ModelDir(root, model).features(dataset, "train")).metadata() or {}).get("feature_dim", ""))
' "${models_root_dir}" "$1" "${datasets%% *}" 2> /dev/null || true)"
    for dim in ${dims}; do
        if [[ "${width}" =~ ^[0-9]+$ && "${dim}" =~ ^[0-9]+$ && ${dim} -gt ${width} ]]; then
            echo "left out: ${dim} components of $1 (its features have ${width} dimensions)" >&2
        else
            fitting="${fitting} ${dim}"
        fi
    done
    echo "${fitting}"
}

# step_times MODEL DIMS: print the expected seconds of each experiment of a model on each data set, as lines
# (cog/commands/step_times.py).
step_times() {
    local flags=(${common_flags[@]+"${common_flags[@]}"}) kept_flags=() flag value=""
    for flag in ${flags[@]+"${flags[@]}"}; do
        case "${flag}" in
            --device | --config) value="yes" && kept_flags+=("${flag}") ;;
            --device=* | --config=*) kept_flags+=("${flag}") ;;
            *) [[ -z "${value}" ]] || kept_flags+=("${flag}"); value="" ;;
        esac
    done
    PYTHONPATH="${repository}${PYTHONPATH:+:${PYTHONPATH}}" "${python}" -m cog.commands.step_times \
        --models_root_dir="${models_root_dir}" --model="$1" --datasets ${datasets} --seeds ${seeds} \
        --shots ${shots} --dims $2 --max_per_class="${max_per_class}" --trained_on="${trained_on}" \
        --finetune_seeds ${finetune_seeds} --n_processes="${n_processes}" ${kept_flags[@]+"${kept_flags[@]}"} \
        ${config_pairs[@]+"${config_pairs[@]}"} 2> /dev/null || true
}

# takes_days TIMES EXPERIMENT: print the time of an experiment on all data sets, if it is more than a day.
takes_days() {
    local name dataset_ seconds text total=0
    while read -r name dataset_ seconds text; do
        # The line of all data sets together has the data set "-"; unknown seconds are "?".
        if [[ ("${name}" == "$2" || "${name}" == "$2"[0-9]*) && "${dataset_}" != "-" && "${seconds}" != "?" ]]; then
            total=$((total + seconds))
        fi
    done <<< "$1"
    [[ ${total} -le 86400 ]] || echo "$((total / 3600)) hours"
}

# expected EXPERIMENT DATASET: print the expected time of a step, from the variable times, or that there is no estimate, in
# parentheses; nothing with --check.
expected() {
    local name dataset_ seconds text
    [[ -z "${checking}" ]] || return 0
    while read -r name dataset_ seconds text; do
        if [[ "${name} ${dataset_}" == "$1 $2" ]]; then
            echo " (${text})"
            return
        fi
    done <<< "${times}"
    echo " (no estimate)"
}

# will_train MODEL: test, with --check, whether the experiment logreg is going to train the first classifiers of a data set;
# experiments on its classifiers cannot be checked before.
will_train() {
    local dataset folder="${models_root_dir}"
    [[ -n "${checking}" && " ${kept[*]-} " == *" logreg "* && " ${model_name} " == *" $1 "* ]] || return 1
    [[ ${#limit_flags[@]} -eq 0 ]] || folder+="/limit-${limit_flags[0]#*=}"
    for dataset in ${datasets}; do
        compgen -G "${folder}/${1%%_*}/${1#*_}/${dataset}/eval_*" > /dev/null ||
            [[ -e "${folder}/${1%%_*}/${1#*_}/${dataset}/runs.zip" ]] || return 0
    done
    return 1
}

# There is one classifier process per data set: its features are loaded once for all seeds and shots. --check loads none:
# one process checks all data sets, each with a verdict, since the start of a process takes seconds.
per_process=(${datasets})
[[ -z "${checking}" ]] || per_process=("${datasets}")
n_steps=0
dims_of_models=()
kept_of_models=()
untrained=""
times=""
times_of_models=()
for model in ${model_name}; do
    fitting="${dims}"
    [[ " ${kept[*]-} " != *" pca "* ]] || fitting="$(fitting_dims "${model}")"
    dims_of_models+=("${fitting}")
    # Experiments that need the results of a left-out experiment are left out, too.
    times="$([[ -n "${checking}" ]] || step_times "${model}" "${fitting}")"
    times_of_models+=("${times}")
    mine=""
    for experiment in ${kept[@]+"${kept[@]}"}; do
        days="$(takes_days "${times}" "${experiment}")"
        if [[ -n "${days}" && -z "${named}" ]]; then
            echo "left out: ${experiment} of ${model} (takes about ${days} on this machine; to run it, give" \
                "experiments=${experiment})" >&2
            [[ "${experiment}" != "logreg" ]] || untrained+=" ${model}"
            continue
        fi
        if [[ " ${untrained} " == *" ${model} "* && "${experiment}" == "cross" ]]; then
            echo "left out: ${experiment} of ${model} (needs its classifiers)" >&2
            continue
        fi
        if [[ "${experiment}" == "cross" ]] && will_train "${model}"; then
            echo "not checked: ${experiment} of ${model} (needs its classifiers, which logreg trains before)" >&2
            continue
        fi
        mine+=" ${experiment}"
    done
    kept_of_models+=("${mine}")
    for experiment in ${mine}; do
        case "${experiment}" in
            label_free | cross | finetune) n_steps=$((n_steps + 1)) ;;
            pca) n_steps=$((n_steps + ${#per_process[@]} * $(count_words ${fitting}))) ;;
            *) n_steps=$((n_steps + ${#per_process[@]})) ;;
        esac
    done
done
# train EXPERIMENT WHAT ARGUMENT...: train classifiers of a model on every data set.
train() {
    local key="$1" what="$2" dataset
    shift 2
    for dataset in ${per_process[@]+"${per_process[@]}"}; do
        run_step "${what} of ${model} on ${dataset}, seeds ${seeds}$(expected "${key}" "${dataset}")" \
            "${python}" "${repository}/logreg.py" \
            --models_root_dir="${models_root_dir}" \
            --model="${model}" \
            --dataset ${dataset} \
            --seeds ${seeds} \
            --skip_complete \
            ${extra[@]+"${extra[@]}"} \
            "$@"
    done
}

# analyze EXPERIMENT ARGUMENT...: run analyses of a model.
analyze() {
    local key="$1"
    shift
    run_step "analysis of ${model}: $1$(expected "${key}" -)" \
        "${python}" "${repository}/analyze_features.py" \
        --models_root_dir="${models_root_dir}" \
        --model="${model}" \
        --models_file="${models_file}" \
        --analysis "$@" \
        ${common_flags[@]+"${common_flags[@]}"} \
        ${config_pairs[@]+"${config_pairs[@]}"}
}

# finetune: fine-tune the model on every data set.
finetune() {
    local name image_settings=()
    for name in ${image_variables}; do
        image_settings+=("${name}=${!name}")
    done
    run_step "fine-tuning of ${model}$(expected finetune -)" \
        bash "${repository}/bash-scripts/finetune.sh" \
        models_root_dir="${models_root_dir}" \
        model_name="${model}" \
        dataset="${datasets}" \
        seeds="${finetune_seeds}" \
        n_processes="${n_processes}" \
        "${image_settings[@]}" \
        model_loader="${model_loader}" \
        models_file="${models_file}" \
        ${common_flags[@]+"${common_flags[@]}"} \
        ${config_pairs[@]+"${config_pairs[@]}"}
}

position=0
for model in ${model_name}; do
    fitting="${dims_of_models[position]}"
    times="${times_of_models[position]}"
    mine="${kept_of_models[position]}"
    position=$((position + 1))
    for experiment in ${mine}; do
        case "${experiment}" in
            logreg) train logreg "logistic regression" ;;
            fewshot) train fewshot "logistic regression with N = ${shots}" --n_shots ${shots} ;;
            label_free) analyze label_free all --datasets ${datasets} ;;
            cross) analyze cross cross --trained_on "${trained_on}" --datasets "${others[@]}" ;;
            pca)
                for dim in ${fitting}; do
                    train "pca${dim}" "${dim} components" CLF.PCA_DIM "${dim}"
                done
                ;;
            balanced) train balanced "at most ${max_per_class} images per class" CLF.MAX_PER_CLASS "${max_per_class}" ;;
            mlp) train mlp "MLP" CLF.TYPE mlp ;;
            mlp_noact) train mlp_noact "MLP without activation" CLF.TYPE mlp_noact ;;
            finetune) finetune ;;
        esac
    done
done
print_results "Experiments of ${model_name}" --models_root_dir="${models_root_dir}" --model ${model_name} --overview
