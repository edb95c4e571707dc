# Shared by the drivers in this folder; sourced after their variables, with their arguments.
#
# A variable of a driver is set in the driver itself, in the environment, or as name=value on the command line; later
# ones win. All other arguments (flags and KEY VALUE pairs) go to the Python scripts, which read the places
# (models_root_dir, the folders of images ...) from the environment.

set -euo pipefail
set -f           # patterns such as deit_* name models, not files in the current folder
unset CDPATH     # with it, cd prints the folder

# From the real path of this file, because the scripts, or this folder, may be reached through symbolic links.
repository="$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")"
# In front of the folders that are there: on clusters, packages come from them.
export PYTHONPATH="${repository}${PYTHONPATH:+:${PYTHONPATH}}"

# COG_PYTHON, else that of an activated environment, else that of the environment of quickstart.sh.
python="${COG_PYTHON:-python}"
[[ -n "${COG_PYTHON:-}${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" || ! -x "${repository}/.venv/bin/python" ]] ||
    python="${repository}/.venv/bin/python"
command -v "${python}" > /dev/null || python="python3"

die() {
    echo "error: $*" >&2
    exit 2
}

# run COMMAND...: run it, and exit if it fails. Schedulers signal the end of a job to this shell alone: the command gets
# the signal, saves its work and ends with 75. The last command of a driver needs no shell, hence "exec" there.
run() {
    local status=0 child signaled="yes"
    # Bash handles no signal while it waits for a foreground process; one in the background ignores ^C by default.
    (trap - INT && exec "$@") &
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

# Variables are the lines name="${name:-default}" of the driver. `words`: all other arguments, KEY VALUE `pairs` last.
variables=" $(sed -n 's/^\([a-z_0-9]*\)="\${\1:-.*/\1/p' "$0" | tr '\n' ' ')"
words=() pairs=()
while [[ $# -gt 0 ]]; do
    if [[ "$1" == "-h" || "$1" == "--help" ]]; then
        sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
        echo "Variables:${variables% }"
        exit 0
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
n_flags=${#words[@]}
words+=(${pairs[@]+"${pairs[@]}"})
