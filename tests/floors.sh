#!/usr/bin/env bash
# Run the default suite with exactly the lowest versions that pyproject.toml declares, on the lowest Python.
#   bash tests/floors.sh FOLDER [pytest arguments]     FOLDER: the environment, made when it is not there (about 7 GB)

source "$(dirname "${BASH_SOURCE[0]}")/../bash-scripts/setup.sh"

[[ $# -ge 1 ]] || die "expected the folder of the environment: bash tests/floors.sh FOLDER [pytest arguments]"
folder="$1"
shift
command -v python3.11 > /dev/null || die "Python 3.11, the lowest that pyproject.toml declares, was not found"
[[ -x "${folder}/bin/python" ]] || python3.11 -m venv "${folder}"
python="${folder}/bin/python"
mapfile -t requirements < <("${python}" "${repository}/tests/floors.py")
[[ ${#requirements[@]} -gt 0 ]] || die "tests/floors.py printed no versions"
"${python}" -m pip install --quiet --disable-pip-version-check "${requirements[@]}" ||
    die "the lowest versions cannot be installed together"
ensure_wordnet
cd "${repository}"
COG_PYTHON="$(realpath -s "${python}")" exec "${folder}/bin/python" -m pytest -n auto --dist loadfile --no-loadscope-reorder "$@"
