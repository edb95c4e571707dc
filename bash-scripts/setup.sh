# Environment for the drivers that must run on a bare machine (quickstart.sh, test.sh); sourced, not run.
#
#   ensure_environment [EXTRA] sets `python` to that of an environment with this package and its extra
#   ensure_wordnet             makes WordNet 3.0 available; sets COG_WORDNET_DIR if it was downloaded

# The drivers change the folder. A COG_PYTHON without a slash is a program that the shell finds.
[[ "${COG_PYTHON:-}" != [!/]*/* ]] || export COG_PYTHON="${PWD}/${COG_PYTHON}"
[[ "${COG_WORDNET_DIR:-}" != [!/]* ]] || export COG_WORDNET_DIR="${PWD}/${COG_WORDNET_DIR}"

source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

# ensure_environment [EXTRA]: create a virtual environment in .venv, once, or use that of COG_PYTHON unchanged.
ensure_environment() {
    local extra="${1:-}" venv="${repository}/.venv" what base stamp
    what="${repository}${extra:+[${extra}]}"
    if [[ -n "${COG_PYTHON:-}" ]]; then
        python="${COG_PYTHON}"
        "${python}" -c "import cog, torch, torchvision, optuna" 2> /dev/null ||
            die "COG_PYTHON=${python} lacks this package; install it there with: ${python} -m pip install -e '${what}'"
        return
    fi
    base="$(find_python)"
    if [[ ! -x "${venv}/bin/python" ]]; then
        echo "Making the virtual environment ${venv} ..."
        [[ ! -e "${venv}" ]] || die "${venv} exists but holds no bin/python; move it away"
        if ! "${base}" -m venv "${venv}"; then
            rm -rf "${venv}" # without python3-venv it is incomplete, and would look complete in the next call
            die "python3 -m venv failed; on Debian or Ubuntu: apt-get install python3-venv"
        fi
    fi
    python="${venv}/bin/python"
    # The package is installed again only if the requirements have changed or the extra is new.
    stamp="${venv}/.installed${extra:+-${extra}}"
    if [[ ! -f "${stamp}" || "${repository}/pyproject.toml" -nt "${stamp}" || "${repository}/setup.py" -nt "${stamp}" ]]; then
        echo "Installing imagenet-cog with its requirements (PyTorch is large: several GB, a few minutes) ..."
        "${python}" -m pip install --quiet --disable-pip-version-check --editable "${what}" ||
            die "pip could not install the requirements; check the network or the package index"
        touch "${stamp}"
    fi
    export COG_PYTHON="${python}"
}

find_python() {
    local candidate
    for candidate in python3 python python3.14 python3.13 python3.12 python3.11; do
        if command -v "${candidate}" > /dev/null &&
            "${candidate}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then
            command -v "${candidate}"
            return
        fi
    done
    die "Python 3.11 or newer is needed and was not found"
}

# ensure_wordnet: find an installed WordNet 3.0, else download it with NLTK, else unpack Debian's package (no root).
ensure_wordnet() {
    local folder="${repository}/.venv/share/wordnet" work
    if wordnet_found; then
        return
    fi
    if [[ -f "${folder}/data.noun" ]]; then
        export COG_WORDNET_DIR="${folder}"
        return
    fi
    echo "Fetching WordNet 3.0 ..."
    timeout 60 "${python}" -m nltk.downloader -q wordnet > /dev/null 2>&1 || true
    if wordnet_found; then
        return
    fi
    if command -v apt-get > /dev/null && command -v dpkg-deb > /dev/null; then
        work="$(mktemp -d)"
        # Unpacked into the environment instead of installed, so that it works in the same way with and without root.
        if (cd "${work}" && fetch_debian_package wordnet-base && dpkg-deb -x wordnet-base_*.deb .) > "${work}/log" 2>&1; then
            mkdir -p "${folder}"
            cp "${work}/usr/share/wordnet/"{data,index}.noun "${folder}/"
            export COG_WORDNET_DIR="${folder}"
        fi
        rm -rf "${work}"
    fi
    wordnet_found || die "WordNet 3.0 was not found and could not be fetched. Do one of: python -m nltk.downloader wordnet;" \
        "apt-get install wordnet-base; or set COG_WORDNET_DIR to a folder that holds WordNet 3.0's data.noun and index.noun"
}

wordnet_found() {
    "${python}" -c "import cog.levels.wordnet; cog.levels.wordnet.load_wordnet()" 2> /dev/null
}

# apt-get download needs package lists; a bare container has none, and without root they are saved in another folder.
fetch_debian_package() {
    apt-get download "$1" && return
    local lists="${PWD}/lists"
    mkdir -p "${lists}/partial"
    apt-get -o Dir::State::Lists="${lists}" -o Debug::NoLocking=1 update &&
        apt-get -o Dir::State::Lists="${lists}" download "$1"
}
