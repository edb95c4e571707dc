# Shared by the drivers in this folder; sourced, not run.
#
# You can set each variable of a driver in three ways, later ones win: in the driver itself, in the environment, or as
# name=value on the driver's command line. All other arguments (flags and KEY VALUE pairs) are passed to the Python
# script unchanged.

set -euo pipefail
unset CDPATH # with it, cd prints the folder

# Resolved from the real path of this file, because the scripts, or this folder, may be reached through symbolic links.
repository="$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")"

# The Python to use: COG_PYTHON, else that of an activated environment, else that of the environment of quickstart.sh.
if [[ -n "${COG_PYTHON:-}" ]]; then
    python="${COG_PYTHON}"
elif [[ -z "${VIRTUAL_ENV:-}" && -z "${CONDA_PREFIX:-}" && -x "${repository}/.venv/bin/python" ]]; then
    python="${repository}/.venv/bin/python"
else
    python="python"
    command -v python > /dev/null || python="python3"
fi

die() {
    echo "error: $*" >&2
    exit 2
}

# dataset and datasets are synonyms for a list of data sets; if both are set, a driver uses the one that it declares.
if [[ -n "${dataset:-}" || -n "${datasets:-}" ]]; then
    dataset="${dataset:-${datasets:-}}"
    datasets="${datasets:-${dataset}}"
fi

# The variables with the paths of images, from the declarations of the data sets; each is also a flag of the Python
# scripts.
image_variables="$(PYTHONPATH="${repository}" "${python}" -c \
    "import yacs; from cog.data import datasets; print(*datasets.flags())" 2> /dev/null)" ||
    die "${python} lacks this toolkit's requirements; activate the environment it is installed in, or set" \
        "COG_PYTHON to its Python"
for variable in ${image_variables}; do
    printf -v "${variable}" '%s' "${!variable:-None}"
done

unset variable

# set_image_flags: put the variables with the paths of images into the array `image_flags`, as flags.
set_image_flags() {
    local name
    image_flags=()
    for name in ${image_variables}; do
        image_flags+=("--${name}=${!name}")
    done
}

# nearest WORD NAME...: print a hint about an unknown word, with the nearest name if one is close.
nearest() {
    PYTHONPATH="${repository}" "${python}" -c '
import sys
from cog.errors import did_you_mean

print(did_you_mean(sys.argv[1], sys.argv[2:]) or "; --help lists all")
' "$@"
}

# require NAME...: stop unless all of these variables are set.
require() {
    local name
    for name in "$@"; do
        case "${!name}" in
            "" | [Nn][Oo][Nn][Ee] | [Nn][Uu][Ll][Ll]) die "no ${name}: give ${name}=..., see --help" ;;
        esac
    done
}

# read_command_line NAME... -- "$@": assign name=value arguments, and put all others into the array `extra`. From these,
# also put KEY VALUE pairs into `config_pairs`, the common flags of all scripts with an output folder into
# `common_flags`, and --limit, which print_results.py also has, into `limit_flags`. With --check, `checking` is set.
read_command_line() {
    local known=() argument name
    while [[ $# -gt 0 && "$1" != "--" ]]; do
        known+=("$1")
        shift
    done
    shift
    extra=()
    config_pairs=()
    common_flags=()
    limit_flags=()
    checking=""
    local is_value="" of_flag=""
    for argument in "$@"; do
        if [[ -n "${of_flag}" ]]; then
            argument="${of_flag}=${argument}"
            of_flag=""
        fi
        if [[ -n "${is_value}" ]]; then
            is_value=""
            extra+=("${argument}")
            config_pairs+=("${argument}")
            continue
        fi
        if [[ "${argument}" =~ ^[A-Z][A-Z0-9_]*(\.[A-Z][A-Z0-9_]*)+$ ]]; then
            is_value="yes"
            extra+=("${argument}")
            config_pairs+=("${argument}")
            continue
        fi
        if [[ "${argument}" == "--device" || "${argument}" == "--config" || "${argument}" == "--limit" ]]; then
            of_flag="${argument}"
            continue
        fi
        if [[ "${argument}" == "-h" || "${argument}" == "--help" ]]; then
            sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
            echo "Variables: ${known[*]}"
            exit 0
        fi
        if [[ "${argument}" =~ ^([A-Za-z_][A-Za-z0-9_-]*)=(.*)$ ]]; then
            name="${BASH_REMATCH[1]}"
            if [[ " ${known[*]} " != *" ${name} "* ]]; then
                case "${name}" in
                    dataset) name="datasets" ;;
                    datasets) name="dataset" ;;
                esac
            fi
            [[ " ${known[*]} " == *" ${name} "* ]] || die "unknown variable ${argument%%=*}$(nearest "${argument%%=*}" "${known[@]}")"
            printf -v "${name}" '%s' "${argument#*=}"
        else
            extra+=("${argument}")
            case "${argument}" in
                --device=* | --config=* | --limit=* | --overwrite | --skip_complete | --check)
                    common_flags+=("${argument}")
                    ;;
            esac
            [[ "${argument}" != --limit=* ]] || limit_flags+=("${argument}")
            [[ "${argument}" != "--check" ]] || checking="yes"
        fi
    done
    [[ -z "${of_flag}" ]] || extra+=("${of_flag}") # without a value: the Python script reports the error
    for name in dataset datasets trained_on; do
        [[ " ${known[*]} " != *" ${name} "* ]] || name_datasets "${name}"
    done
}

# name_datasets VARIABLE: replace labels of data sets by names (L5: cog_l5), unless images_root names the user's own.
name_datasets() {
    [[ "${!1}" == *[A-Z-]* && "${!1}" != "None" && "${images_root:-None}" == "None" ]] || return 0
    printf -v "$1" '%s' "$(PYTHONPATH="${repository}" "${python}" -c '
import sys
from cog.models.names import find_dataset

root = None if sys.argv[1] == "None" else sys.argv[1]
print(*(find_dataset(name, root=root) for name in sys.argv[2].split()))
' "${models_root_dir:-None}" "${!1}")"
}

# Schedulers announce the end of a job by sending SIGTERM or SIGUSR1 to this shell, and a closed terminal or a lost
# connection sends SIGHUP. The shell forwards the signal to the running Python process, which saves its work and ends with
# exit code 75; the same command continues this work.
child=""
interrupted=""
signals=0
forward() {
    interrupted="$1"
    signals=$((signals + 1))
    if [[ -n "${child}" ]]; then
        kill -s "$1" "${child}" 2> /dev/null || true
    fi
}
trap 'forward TERM' TERM
trap 'forward USR1' USR1
trap 'forward TERM' HUP # has no effect under nohup
trap 'signals=$((signals + 1))' INT # ^C reaches the Python process, too; the shell waits for its end

stop_if_interrupted() {
    if [[ -n "${interrupted}" ]]; then
        echo "interrupted by SIG${interrupted}; finished work is saved: run the same command again to continue" >&2
        exit 75
    fi
}

# print_results HEADING ARGUMENT...: print the table at the end, unless --check is given.
print_results() {
    [[ -z "${checking}" ]] || return 0
    echo "$1"
    "${python}" "${repository}/print_results.py" "${@:2}" ${limit_flags[@]+"${limit_flags[@]}"}
}

# run_step DESCRIPTION COMMAND...: print the step, run it, and exit at the first failure. With --check, all steps are
# checked, and the faulty ones are named at the end.
step_number=0
bad_steps=()
run_step() {
    local description="$1" status=0 seen
    shift
    step_number=$((step_number + 1))
    stop_if_interrupted
    echo "[${step_number}/${n_steps}] ${description}"
    # In the background, because bash handles no signal while it waits for a foreground process. Processes in the
    # background ignore ^C by default, hence the trap.
    (
        trap - INT
        exec "$@"
    ) &
    child=$!
    while true; do
        seen=${signals}
        status=0
        wait "${child}" || status=$?
        # A signal to this shell ends the wait, but not the process.
        [[ ${signals} -ne ${seen} ]] || break
    done
    child=""
    if [[ ${status} -eq 75 || (-n "${interrupted}" && (${status} -eq 143 || ${status} -eq 138 || ${status} -eq 129)) ]]; then
        echo "interrupted at step ${step_number} of ${n_steps} (${description}); finished work is saved: run the" \
            "same command again to continue" >&2
        exit 75
    fi
    if [[ ${status} -eq 2 && -n "${checking}" ]]; then
        bad_steps+=("${step_number} (${description})")
    elif [[ ${status} -ne 0 ]]; then
        local todo="run the same command again to continue"
        [[ ${status} -ne 2 ]] || todo="fix it, then run the same command again"
        [[ ${status} -ne 3 ]] || todo="fix these images or accept the loss (--allow_failures N), then run the same command again"
        echo "error: stopped at step ${step_number} of ${n_steps} (${description}), exit code ${status};" \
            "complete outputs are kept, ${todo}" >&2
        exit "${status}"
    fi
}

name_bad_steps() {
    local status=$?
    [[ ${status} -eq 0 && ${#bad_steps[@]} -gt 0 ]] || return 0
    echo "error: ${#bad_steps[@]} of ${n_steps} steps cannot start as they are:" >&2
    printf '  %s\n' "${bad_steps[@]}" >&2
    exit 2
}
trap name_bad_steps EXIT

count_words() {
    echo $#
}

# Variables that all scripts for classifiers have.
classifier_variables=(models_root_dir model_name dataset train_features_dir test_features_dir output_dir seeds)

# require_features: stop unless variables determine the features; sets n_datasets.
require_features() {
    if [[ "${train_features_dir}" == "None" && "${test_features_dir}" == "None" ]]; then
        require models_root_dir model_name dataset
    fi
    n_datasets=$(count_words ${dataset})
}

# output_of DATASET: print the folder of the classifiers on this data set; None: the default folder.
output_of() {
    if [[ "${output_dir}" != "None" && ${n_datasets} -gt 1 ]]; then
        echo "${output_dir}/$1"
    else
        echo "${output_dir}"
    fi
}

# train_classifiers DESCRIPTION DATASET OUTPUT_DIR ARGUMENT...: train classifiers with all seeds in one step. Keys among
# the arguments have precedence over keys on the command line of the driver.
train_classifiers() {
    run_step "$1" \
        "${python}" "${repository}/logreg.py" \
        --models_root_dir="${models_root_dir}" \
        --model="${model_name}" \
        --dataset="$2" \
        --train_features_dir="${train_features_dir}" \
        --test_features_dir="${test_features_dir}" \
        --output_dir="$3" \
        --seeds ${seeds} \
        --skip_complete \
        ${extra[@]+"${extra[@]}"} \
        "${@:4}"
}

# print_classifiers HEADING DATASET OUTPUT_DIR ARGUMENT...: print the averages of the runs of train_classifiers.
print_classifiers() {
    print_results "$1" \
        --logreg_root_dir="$3" \
        --models_root_dir="${models_root_dir}" \
        --model="${model_name}" \
        --dataset="$2" \
        --seeds ${seeds} \
        ${config_pairs[@]+"${config_pairs[@]}"} \
        "${@:4}"
}

# Variables that all scripts for studies have.
study_variables=(models_root_dir model_names datasets splits seeds shots ${image_variables} model_loader models_file
    log_dir stages extract_task logreg_task extract_args logreg_args)

# run_study FLAG... -- NAME...: run a study with these flags; the study variables and the variables NAME are flags, too.
run_study() {
    local flags=() name argument
    while [[ "$1" != "--" ]]; do
        flags+=("$1")
        shift
    done
    shift
    set -f # patterns in model_names refer to folders under the root, not to files in the current folder
    for name in "${study_variables[@]}" "$@"; do
        case "${name}" in
            model_names) flags+=(--models ${model_names}) ;;
            datasets | splits | seeds | shots | stages | gpu_ids) flags+=("--${name}" ${!name}) ;;
            *) flags+=("--${name}=${!name}") ;;
        esac
    done
    # These flags are for the study, all others for the Python scripts.
    local passed=()
    for argument in ${extra[@]+"${extra[@]}"}; do
        case "${argument}" in
            --dry_run | --check | --delete_features | --limit=*) flags+=("${argument}") ;;
            *) passed+=("${argument}") ;;
        esac
    done
    PYTHONPATH="${repository}${PYTHONPATH:+:${PYTHONPATH}}" exec "${python}" -m cog.commands.study "${flags[@]}" \
        -- ${passed[@]+"${passed[@]}"}
}
