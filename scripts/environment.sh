# Sourced by test.sh and demo.sh: the virtual environment .venv of this checkout, made and filled once.
# shellcheck shell=bash

VENV=.venv
EXTRAS=export,server,serve,plan,bench,json,discover,cpu

# Make the environment ready. $1: "run" for what the program needs, "test" for the test and lint tools as well.
# Does nothing, and needs no network, when a stamp says that this was done for the pyproject.toml and this file as they stand.
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
        # One process loads one version of a module: others lie beside, and a process that shall load one finds it first.
        install_beside tensorrt-rtx-1.4.0.76 tensorrt-rtx-cu13{,-libs,-bindings}==1.4.0.76
        install_beside tensorrt-10.3.0 tensorrt-cu12-bindings==10.3.0
        install_beside tensorrt-lean-10.15.1.29 tensorrt-lean-cu12-{libs,bindings}==10.15.1.29
        install_beside tensorrt-lean-11.4.0.106 tensorrt-lean-cu13-{libs,bindings}==11.4.0.106
    fi
    stamp >"$VENV/ready-to-$purpose"
}

# Install packages into a directory of their own in the environment. Tests that need them are listed as not run without.
install_beside() {
    local name=$1 place=$VENV/$1
    shift
    [ -f "$place/complete" ] && return
    rm -rf "$place"
    if pip_install --no-deps --target "$place" "$@"; then
        touch "$place/complete"
    else
        rm -rf "$place"
        echo "$name cannot be installed here: the tests that need it are not run." >&2
    fi
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
files = pathlib.Path("pyproject.toml"), pathlib.Path("scripts/environment.sh")
print(sys.version.split()[0], hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest())'
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
        echo "  TensorRT        two versions of TensorRT-RTX and of the lean runtime, about 300 MB,"
        echo "                  under NVIDIA's own licence, to test the building of engines and what"
        echo "                  is called of them; left out where there are none"
    fi
}

pip_install() {
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

fail() {
    echo "error: $*" >&2
    exit 1
}
