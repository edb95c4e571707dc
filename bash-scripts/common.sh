# Shared by the drivers in this folder; sourced, not run.
#
# You can set each variable of a driver in three ways, later ones win: in the driver itself, in the environment, or as
# name=value on the driver's command line. All other arguments (flags and KEY VALUE pairs) go to the Python script.

set -euo pipefail
unset CDPATH # with it, cd prints the folder

# Resolved from the real path of this file, because the scripts, or this folder, may be reached through symbolic links.
repository="$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")"
# In front of the folders that are there: on clusters, packages come from them.
export PYTHONPATH="${repository}${PYTHONPATH:+:${PYTHONPATH}}"

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

# read_command_line NAME... -- "$@": assign name=value arguments to the variables NAME, and put KEY VALUE pairs into the
# array `pairs`, all other arguments into the array `flags`.
read_command_line() {
    local known=" " name
    while [[ "$1" != "--" ]]; do
        known+="$1 "
        shift
    done
    shift
    flags=()
    pairs=()
    while [[ $# -gt 0 ]]; do
        if [[ "$1" == "-h" || "$1" == "--help" ]]; then
            sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
            echo "Variables:${known% }"
            exit 0
        elif [[ "$1" =~ ^[A-Z][A-Z0-9_]*(\.[A-Z][A-Z0-9_]*)+$ && $# -gt 1 ]]; then
            pairs+=("$1" "$2")
            shift
        elif [[ "$1" =~ ^([A-Za-z_][A-Za-z0-9_-]*)=(.*)$ ]]; then
            name="${BASH_REMATCH[1]}"
            case "${known}:${name}" in
                *" ${name} "*) ;;
                *:dataset) name="datasets" ;;
                *:datasets) name="dataset" ;;
            esac
            [[ "${known}" == *" ${name} "* ]] || die "unknown variable ${name}; expected one of:${known% }"
            printf -v "${name}" '%s' "${1#*=}"
        else
            flags+=("$1")
        fi
        shift
    done
}

# run COMMAND...: run it, and exit if it fails. Schedulers announce the end of a job by sending SIGTERM or SIGUSR1 to this
# shell alone, and a closed terminal sends SIGHUP: the command gets the signal, too, saves its work and ends with exit
# code 75; the same driver with the same arguments continues.
run() {
    local status signaled="yes"
    # In the background, because bash handles no signal while it waits for a foreground process. Processes in the
    # background ignore ^C by default, hence the trap.
    (
        trap - INT
        exec "$@"
    ) &
    local child=$!
    trap "forward TERM ${child}" TERM HUP
    trap "forward USR1 ${child}" USR1
    trap 'signaled="yes"' INT # ^C reaches the command without this shell, which waits for its end
    while [[ -n "${signaled}" ]]; do # a signal to this shell ends the wait, but not the command
        signaled=""
        status=0
        wait "${child}" || status=$?
    done
    trap - TERM HUP USR1 INT
    [[ ${status} -eq 0 ]] || exit "${status}"
}

forward() {
    signaled="yes"
    kill -s "$1" "$2" 2> /dev/null || true
}

# train_classifiers DATASET OUTPUT_DIR FLAG...: train classifiers with all seeds in one process, which loads the features
# once. Keys among the flags have precedence over those on the command line.
train_classifiers() {
    run "${python}" "${repository}/logreg.py" \
        --models_root_dir="${models_root_dir}" \
        --model="${model_name}" \
        --dataset="$1" \
        --train_features_dir="${train_features_dir}" \
        --test_features_dir="${test_features_dir}" \
        --output_dir="$2" \
        --seeds ${seeds} \
        ${flags[@]+"${flags[@]}"} ${pairs[@]+"${pairs[@]}"} "${@:3}"
}

# print_averages DATASET OUTPUT_DIR KEY VALUE...: print the averages over seeds of the runs of train_classifiers.
print_averages() {
    echo "Average over seeds ${seeds}: $1${3:+, $3 $4}"
    run "${python}" "${repository}/print_results.py" \
        --logreg_root_dir="$2" \
        --models_root_dir="${models_root_dir}" \
        --model="${model_name}" \
        --dataset="$1" \
        --seeds ${seeds} \
        ${pairs[@]+"${pairs[@]}"} "${@:3}"
}

# output_of DATASET: print the folder of the classifiers on this data set; None: the default folder.
output_of() {
    if [[ "${output_dir}" == "None" || "${dataset}" == "$1" ]]; then
        echo "${output_dir}"
    else
        echo "${output_dir}/$1"
    fi
}
