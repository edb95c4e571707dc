#!/usr/bin/env bash
# Submit a study to SLURM: study.sh --slurm, with the same variables and those of SLURM.

[ -n "${BASH_VERSION:-}" ] || { echo "error: run it with bash: bash $0" >&2; exit 2; }
exec bash "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../study.sh" --slurm "$@"
