# Shared by the drivers in this folder; sourced after their variables, with their arguments.
# A variable is set in the driver itself, in the environment, or as name=value on the command line; later ones win. All
# other arguments go to the Python scripts, which read the places (models_root_dir ...) from the environment.

set -euo pipefail
set -f           # patterns such as deit_* name models, not files in the current folder
unset CDPATH     # with it, cd prints the folder

repository="$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")" # also through symbolic links
# On clusters, packages come from folders that are there. "python -P" takes none from the current folder.
export PYTHONPATH="${repository}${PYTHONPATH:+:${PYTHONPATH}}"

# COG_PYTHON, else that of an activated environment, else that of the environment of quickstart.sh.
python="${COG_PYTHON:-python}"
[[ -n "${COG_PYTHON:-}${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" || ! -x "${repository}/.venv/bin/python" ]] ||
    python="${repository}/.venv/bin/python"
command -v "${python}" > /dev/null || python="python3"

die() { echo "error: $*" >&2; exit 2; }

# run COMMAND...: run it, and exit if it fails. Schedulers signal the end of a job to this shell alone, which handles no
# signal while it waits for a foreground process. The last command of a driver needs no shell, hence "exec" there.
run() {
    local status=0 child signaled="yes"
    (trap - INT && exec "$@") & # in the background, it would ignore ^C
    child=$!
    trap "signaled=yes; kill -s TERM ${child} 2> /dev/null || true" TERM HUP
    trap "signaled=yes; kill -s USR1 ${child} 2> /dev/null || true" USR1
    trap 'signaled="yes"' INT # ^C reaches the command without this shell, which waits for its end
    while [[ -n "${signaled}" ]]; do # a signal to this shell ends the wait, but not the command
        signaled="" status=0
        wait "${child}" || status=$?
    done
    trap - TERM HUP USR1 INT
    [[ ${status} -eq 0 ]] || exit "${status}"
}

# Variables are the lines name=value above "source" in the driver. `words`: all other arguments, KEY VALUE `pairs` last.
variables=" $(sed -n '/^source/q; s/^\([a-z_0-9]*\)=.*/\1/p' "$0" | tr '\n' ' ')"
words=() pairs=()
while [[ $# -gt 0 ]]; do
    if [[ "$1" == "-h" || "$1" == "--help" ]]; then
        sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
        echo "Variables:${variables% }" && exit
    elif [[ "$1" =~ ^[A-Z][A-Z0-9_]*(\.[A-Z][A-Z0-9_]*)+$ && $# -gt 1 ]]; then
        pairs+=("$1" "$2")
        shift
    elif [[ "$1" =~ ^[A-Za-z_][A-Za-z0-9_-]*= ]]; then
        [[ "${variables}" == *" ${1%%=*} "* ]] || die "unknown variable ${1%%=*}; expected one of:${variables% }"
        printf -v "${1%%=*}" '%s' "${1#*=}"
    else
        words+=("$1")
    fi
    shift
done
[[ "${variables}" == " " ]] || export ${variables?}
words+=(${pairs[@]+"${pairs[@]}"})
