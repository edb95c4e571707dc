#!/usr/bin/env bash
# Downloads the checkpoints of all models, several GB.
#   bash prepare_models/all.sh <models_root_dir> [--dry_run]
[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
exec bash "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/prepare.sh" "$@" --all
