#!/usr/bin/env bash
# The whole test suite: lint, types, tests. Installs what it needs into .venv the first time; works offline afterwards.
#
#   bash scripts/test.sh                      everything
#   bash scripts/test.sh tests/protocol -x    the checks, then these tests only (arguments go to pytest)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/environment.sh
source scripts/environment.sh

started=$SECONDS
prepare_environment test

# A hub and several targets run at once in the tests: pools that spin or take every core would starve each other.
cores=$(nproc)
export OMP_NUM_THREADS=$((cores < 4 ? cores : 4)) OMP_WAIT_POLICY=PASSIVE TOKENIZERS_PARALLELISM=false
export HF_HUB_OFFLINE=1 # nothing here asks a model hub for anything

step() {
    echo "== $*"
    "$@"
}

bin=$VENV/bin
step "$bin/ruff" check .
step "$bin/ruff" format --check .
step "$bin/mypy"
echo "The tests fetch the default model once (93 MB, into the starsd-edge cache) and export it into .cache/."
step "$bin/python" -m pytest "$@"
echo "All checks passed in $((SECONDS - started)) s."
