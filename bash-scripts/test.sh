#!/usr/bin/env bash
# Install what the tests need and run the test suite; arguments go to pytest.
#   bash bash-scripts/test.sh             the default suite, under 5 minutes on 2 cores
#   bash bash-scripts/test.sh --slow      with the slow tests (CI=true does the same)

source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

ensure_environment dev
ensure_wordnet
cd "${repository}"
exec "${python}" -m pytest "$@"
