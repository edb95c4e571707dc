#!/usr/bin/env bash
# Install what the tests need and run the test suite on all processors; arguments go to pytest. With the slow tests:
#   bash bash-scripts/test.sh --slow      (CI=true does the same)

[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/setup.sh"

ensure_environment dev
ensure_wordnet
cd "${repository}"
exec "${python}" -m pytest -n auto --dist loadfile --no-loadscope-reorder "$@"
