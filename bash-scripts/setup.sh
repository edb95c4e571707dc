# For the drivers that must run on a bare machine (quickstart.sh, test.sh); sourced like common.sh.

# The drivers change the folder. A COG_PYTHON without a slash is a program that the shell finds.
[[ "${COG_PYTHON:-}" != [!/]*/* ]] || export COG_PYTHON="${PWD}/${COG_PYTHON}"
[[ "${COG_WORDNET_DIR:-}" != [!/]* ]] || export COG_WORDNET_DIR="${PWD}/${COG_WORDNET_DIR}"

source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh" "$@"

# ensure_environment [EXTRA]: make an environment with this package in .venv, once, or use that of COG_PYTHON unchanged.
ensure_environment() {
    local venv="${repository}/.venv" what="${repository}${1:+[$1]}" base stamp
    if [[ -n "${COG_PYTHON:-}" ]]; then
        # Without importing them, which takes seconds.
        "${python}" -c "import importlib.util as u; assert all(map(u.find_spec, ('cog', 'torch', 'optuna')))" \
            2> /dev/null ||
            die "COG_PYTHON=${python} lacks this package; install it there with: ${python} -m pip install -e '${what}'"
        return
    fi
    for base in python3 python python3.14 python3.13 python3.12 python3.11 none; do
        [[ "${base}" != "none" ]] || die "Python 3.11 or newer is needed and was not found"
        ! "${base}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || break
    done
    export COG_PYTHON="${venv}/bin/python"
    python="${COG_PYTHON}"
    if [[ ! -x "${python}" ]]; then
        echo "Making the virtual environment ${venv} ..."
        [[ ! -e "${venv}" ]] || die "${venv} exists but holds no bin/python; move it away"
        "${base}" -m venv "${venv}" || # without python3-venv it is incomplete, and would look complete the next time
            { rm -rf "${venv}"; die "python3 -m venv failed; on Debian or Ubuntu: apt-get install python3-venv"; }
    fi
    stamp="${venv}/.installed${1:+-$1}" # older than the requirements, or none for the extra: install again
    [[ ! -f "${stamp}" || "${repository}/pyproject.toml" -nt "${stamp}" ]] || return 0
    echo "Installing imagenet-cog with its requirements (PyTorch is large: several GB, a few minutes) ..."
    "${python}" -m pip install --quiet --disable-pip-version-check --editable "${what}" ||
        die "pip could not install the requirements; check the network or the package index"
    touch "${stamp}"
}

# Find an installed WordNet 3.0, else download it with NLTK, else unpack Debian's package, without root.
ensure_wordnet() {
    local folder="${repository}/.venv/share/wordnet"
    ! wordnet_found || return 0
    if [[ ! -f "${folder}/data.noun" ]]; then
        echo "Fetching WordNet 3.0 ..."
        timeout 60 "${python}" -m nltk.downloader -q wordnet > /dev/null 2>&1 && wordnet_found && return
        (unpack_wordnet "${folder}") > /dev/null 2>&1 || true
    fi
    export COG_WORDNET_DIR="${folder}"
    wordnet_found || die "WordNet 3.0 was not found and could not be fetched. Do one of: python -m nltk.downloader" \
        "wordnet; apt-get install wordnet-base; or set COG_WORDNET_DIR to a folder with its data.noun and index.noun"
}
wordnet_found() { "${python}" -P -c "import cog.levels.wordnet; cog.levels.wordnet.load_wordnet()" 2> /dev/null; }
unpack_wordnet() { # FOLDER; a bare container has no package lists: without root they are saved here
    local work="$1.work" lists=(-o Dir::State::Lists="$1.work/lists" -o Debug::NoLocking=1)
    mkdir -p "${work}/lists/partial" && cd "${work}" && set +f || return
    apt-get download wordnet-base || { apt-get "${lists[@]}" update && apt-get "${lists[@]}" download wordnet-base; }
    dpkg-deb -x wordnet-base_*.deb . && mkdir -p "$1" && cp usr/share/wordnet/{data,index}.noun "$1" && rm -rf "${work}"
}
