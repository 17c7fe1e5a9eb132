# Sourced by test.sh and demo.sh: the virtual environment .venv of this checkout, made and filled once.
# shellcheck shell=bash

VENV=.venv
EXTRAS=export,server,plan,bench,cpu
OLDER_TENSORRT_RTX=1.4.0.76

# Make the environment ready. $1: "run" for what the program needs, "test" for the test and lint tools as well.
# Does nothing, and needs no network, when a stamp says that this was done for the pyproject.toml as it stands.
prepare_environment() {
    local purpose=$1
    has_pip || make_venv
    if is_ready "$purpose"; then
        return
    fi
    say_what_is_downloaded "$purpose"
    pip_install "pip>=25.1" # the first that knows dependency groups
    # First and alone: pip then takes the CPU build of torch where an index offers one.
    pip_install torch==2.13.0
    pip_install --editable ".[$EXTRAS]"
    if [ "$purpose" = test ]; then
        pip_install --group test --group lint
        # Tests of engine builds need it and are listed as not run without it.
        pip_install --editable ".[tensorrt-rtx]" || echo "TensorRT-RTX cannot be installed here: engine builds are not tested." >&2
        install_older_tensorrt_rtx || echo "TensorRT-RTX $OLDER_TENSORRT_RTX cannot be installed here: builds with it are not tested." >&2
    fi
    stamp >"$VENV/ready-to-$purpose"
}

# Its interface is that of TensorRT 10.15, and the newer one has its place in the environment: a directory of its own,
# which a process of the tests finds first.
install_older_tensorrt_rtx() {
    local place=$VENV/tensorrt-rtx-$OLDER_TENSORRT_RTX
    [ -d "$place/tensorrt_rtx" ] && return
    rm -rf "$place"
    pip_install --target "$place" --group older-tensorrt-rtx && [ -d "$place/tensorrt_rtx" ]
}

# False also for what an interrupted run or a removed Python left of an environment.
has_pip() {
    "$VENV/bin/python" -c 'import pip' 2>/dev/null
}

is_ready() {
    local purpose=$1 mark
    for mark in "$VENV/ready-to-$purpose" "$VENV/ready-to-test"; do
        if [ -f "$mark" ] && [ "$(cat "$mark")" = "$(stamp)" ]; then
            return 0
        fi
    done
    return 1
}

stamp() {
    "$VENV/bin/python" -c '
import hashlib, pathlib, sys
print(sys.version.split()[0], hashlib.sha256(pathlib.Path("pyproject.toml").read_bytes()).hexdigest())'
}

make_venv() {
    local python
    python=$(find_python)
    echo "Making the virtual environment $VENV with $($python --version)."
    [ -x "$VENV/bin/python" ] || rm -rf "$VENV" # what a removed Python left
    "$python" -m venv "$VENV" || {
        rm -rf "$VENV"
        fail "$python cannot make a virtual environment: install its venv module (Debian and Ubuntu: apt install python3-venv)"
    }
}

# $PYTHON, else python3.11, else a python3 that is new enough.
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3}; do
        if command -v "$candidate" >/dev/null &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
            echo "$candidate"
            return
        fi
    done
    fail "no Python 3.10 or newer found: install one, or name it with PYTHON=/path/to/python3"
}

say_what_is_downloaded() {
    cat <<'TEXT'
Installing with pip, from the index that your pip is configured for:
  torch 2.13.0    about 200 MB where the index offers the CPU build, which is all
                  that is needed here; the CUDA build that other indexes deliver
                  is about 3 GB with its libraries
  the rest        about 100 MB (transformers, onnx, onnxruntime, numpy, ...)
TEXT
    if [ "$1" = test ]; then
        echo "  test tools      about 80 MB (pytest, hypothesis, scipy, mypy, ruff, shellcheck, hadolint, ...)"
        echo "  TensorRT-RTX    two versions of about 100 MB each, under NVIDIA's own licence, to test"
        echo "                  the building of engines; left out where there is none"
    fi
}

pip_install() {
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

fail() {
    echo "error: $*" >&2
    exit 1
}
