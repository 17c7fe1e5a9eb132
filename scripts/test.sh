#!/usr/bin/env bash
# The whole test suite: lint, types, tests. Installs what it needs into .venv the first time; works offline afterwards.
#
#   bash scripts/test.sh                      everything, and core and target on each other Python there is (3.10 to 3.12)
#   bash scripts/test.sh tests/protocol -x    the checks, then these tests only (arguments go to pytest)
#   bash scripts/test.sh --quick              the checks, then the tests that compute alone: no processes, models or torch
#   bash scripts/test.sh --pythons            core and target on the other Pythons only
#   bash scripts/test.sh --help               this; pytest's own help is that of `.venv/bin/pytest --help`
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/environment.sh
source scripts/environment.sh
# shellcheck source=scripts/pythons.sh
source scripts/pythons.sh

case ${1-} in
    -h | --help)
        sed -n '2,/^set /{s/^# \{0,1\}//p}' scripts/test.sh
        exit
        ;;
esac
# Directories of tests that compute and do no more, and which of their files are long: --quick leaves those out.
PURE=(tests/speculation tests/protocol tests/text tests/planning tests/monitor tests/telemetry tests/device)
LONG=(tests/speculation/test_exactness.py tests/protocol/test_lossy_network.py tests/protocol/test_fuzz.py
    tests/text/test_stream.py)

started=$SECONDS
prepare_environment test

# A hub and several targets run at once in the tests: pools that spin or take every core would starve each other.
cores=$(nproc)
workers=$((cores < 4 ? cores : 4))
export OMP_NUM_THREADS=$workers OMP_WAIT_POLICY=PASSIVE TOKENIZERS_PARALLELISM=false
export HF_HUB_OFFLINE=1 # nothing here asks a model hub for anything
# Some hundred processes start in the tests, and each would compile our modules anew.
unset PYTHONDONTWRITEBYTECODE

step() {
    echo "== $*"
    "$@"
}

# shellcheck disable=SC2031 # set in a subshell for other Pythons only
bin=$VENV/bin
if [ "${1-}" = --pythons ]; then
    start_other_pythons
    finish_other_pythons
    exit
fi
step "$bin/ruff" check .
step "$bin/ruff" format --check .
step "$bin/mypy"
if [ "${1-}" = --quick ]; then
    shift
    OMP_NUM_THREADS=1 step "$bin/python" -m pytest --quiet --numprocesses "$workers" --dist loadfile \
        -m "not model and not export and not slow" "${LONG[@]/#/--ignore=}" "${PURE[@]}" "$@"
    echo "The quick checks passed in $((SECONDS - started)) s."
    exit
fi
echo "The tests fetch the default model once (93 MB, into the starsd-edge cache) and export it into .cache/."
if [ $# -eq 0 ]; then
    # Files side by side, each worker with one thread: many tests wait more than they compute. In the groups and the order
    # of tests/conftest.py and not by the number of tests: else one worker ends long before the other.
    # The other Pythons beside them, so that no core is idle while tests wait for each other's processes.
    failed=0
    start_other_pythons
    OMP_NUM_THREADS=1 step "$bin/python" -m pytest --numprocesses "$workers" --dist loadfile --no-loadscope-reorder ||
        failed=1
    finish_other_pythons || failed=1
    [ "$failed" -eq 0 ]
else
    step "$bin/python" -m pytest "$@"
fi
echo "All checks passed in $((SECONDS - started)) s."
