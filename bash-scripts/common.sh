# Shared by the drivers in this folder; sourced, not run.
#
# Every variable a driver declares can be set in three ways, the later ones winning: in the driver itself,
# from the environment, or as name=value on the driver's command line. What is left on the command line
# goes to the Python script unchanged (flags and KEY VALUE pairs).

set -euo pipefail

repository="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

# The Python to use: COG_PYTHON, else an activated environment, else the one quickstart.sh made.
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

"${python}" -c "import yacs" 2> /dev/null ||
    die "${python} lacks this toolkit's requirements; activate the environment it is installed in, or name its Python" \
        "by COG_PYTHON"

# read_command_line NAME... -- "$@": assign name=value arguments, keep the rest in the array `extra`; of that, the KEY
# VALUE pairs in `config_pairs`, too, and the flags that every script with an output folder has in `common_flags`.
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
    local is_value="" of_flag=""
    for argument in "$@"; do
        if [[ -n "${of_flag}" ]]; then
            of_flag=""
            extra+=("${argument}")
            common_flags+=("${argument}")
            continue
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
        if [[ "${argument}" == "-h" || "${argument}" == "--help" ]]; then
            sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
            echo "Variables: ${known[*]}"
            exit 0
        fi
        if [[ "${argument}" =~ ^([a-z][a-z0-9_]*)=(.*)$ ]]; then
            name="${BASH_REMATCH[1]}"
            [[ " ${known[*]} " == *" ${name} "* ]] || die "unknown variable ${name}; expected one of: ${known[*]}"
            printf -v "${name}" '%s' "${BASH_REMATCH[2]}"
        else
            extra+=("${argument}")
            case "${argument}" in
                --device | --config)
                    of_flag="yes"
                    common_flags+=("${argument}")
                    ;;
                --device=* | --config=* | --overwrite | --skip_complete | --check) common_flags+=("${argument}") ;;
            esac
        fi
    done
}

# Schedulers announce the end of a job by SIGTERM or SIGUSR1 to this shell. It is passed on to the Python process at
# work, which saves and ends with exit code 75: the same command continues from there.
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
trap 'signals=$((signals + 1))' INT # ^C reaches both; its end is waited for

stop_if_interrupted() {
    if [[ -n "${interrupted}" ]]; then
        echo "interrupted by SIG${interrupted}; what is finished is saved: run the same command again to continue" >&2
        exit 75
    fi
}

# run_step DESCRIPTION COMMAND...: announce, run, and stop everything at the first failure.
step_number=0
run_step() {
    local description="$1" status=0 seen
    shift
    step_number=$((step_number + 1))
    stop_if_interrupted
    echo "[${step_number}/${n_steps}] ${description}"
    # In the background, because bash handles no signal while it waits for a foreground process; there ^C would be
    # ignored if it were not for the trap.
    (
        trap - INT
        exec "$@"
    ) &
    child=$!
    while true; do
        seen=${signals}
        status=0
        wait "${child}" || status=$?
        # A signal ends the wait, not the process.
        [[ ${signals} -ne ${seen} ]] || break
    done
    child=""
    if [[ ${status} -eq 75 || (-n "${interrupted}" && (${status} -eq 143 || ${status} -eq 138)) ]]; then
        echo "interrupted at step ${step_number} of ${n_steps} (${description}); what is finished is saved: run the" \
            "same command again to continue" >&2
        exit 75
    fi
    if [[ ${status} -ne 0 ]]; then
        echo "error: stopped at step ${step_number} of ${n_steps} (${description}), exit code ${status}; what is" \
            "complete is kept, run the same command again to continue" >&2
        exit "${status}"
    fi
}

count_words() {
    echo $#
}
