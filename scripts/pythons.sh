# Sourced by test.sh: core and target tested on the other Pythons that they are said to run on.
# shellcheck shell=bash
#
# Each gets an environment of its own under .cache/pythons with what targets and hubs have: no torch. Tests that need
# torch carry the mark `export`; ONNX Runtime's engine is tested on bundles of a tiny model that are made beforehand.
#
# The rule: on the other Pythons that runs in which Python itself takes part. That is reading arguments, variables, files
# and messages (typer and msgspec read annotations; TOML has another reader on 3.10), event loops, threads, processes,
# signals and terminals, importing every module, and installation. What computes, and what walks a state machine in
# made-up time, is the same on each: it runs on the Python of .venv alone, unless it takes next to no time. A new file in
# these directories runs on each Python until it is listed below.

OTHER_PYTHONS=${PYTHONS:-python3.10 python3.11 python3.12}
PYTHONS_PLACE=.cache/pythons
# Directories of tests of what runs beside a target model, and of what it shares with the others.
CORE_AND_TARGET=(tests/speculation tests/protocol tests/text tests/bundles tests/runtime tests/monitor tests/doctor
    tests/cli tests/jetson tests/serve tests/packaging/test_imports.py)
# Of these, what only computes.
SAME_ON_EVERY_PYTHON=(tests/speculation/test_exactness.py tests/speculation/test_tree.py
    tests/protocol/test_lossy_network.py tests/protocol/test_fuzz.py tests/text/test_stream.py
    tests/monitor/test_model.py tests/monitor/test_frame.py tests/cli/test_plan.py
    tests/jetson/test_decoder.py tests/jetson/test_draft_size.py tests/jetson/test_kept_sequence.py
    tests/jetson/test_measured_drafts.py tests/jetson/test_never_slower.py tests/jetson/test_prefill.py
    tests/jetson/test_wait_policy.py)

# Of each environment that is ready: its version, and the tests that run there, by their process.
ready=()
running=()

# Begin the tests on each of $OTHER_PYTHONS (names or paths) that is not the Python of .venv. One that is not there, or for
# which nothing can be installed, is said to be not run.
start_other_pythons() {
    prepare_others
    if [ ${#ready[@]} -eq 0 ]; then
        return
    fi
    export TINY_BUNDLES=$PWD/.cache/tiny-bundles
    step "$VENV/bin/python" -m tests.support.tiny_bundles "$TINY_BUNDLES"
    local version
    for version in "${ready[@]}"; do
        OMP_NUM_THREADS=1 "$PYTHONS_PLACE/$version/bin/python" -m pytest --quiet -m "not model and not export" \
            "${SAME_ON_EVERY_PYTHON[@]/#/--ignore=}" "${CORE_AND_TARGET[@]}" >"$PYTHONS_PLACE/$version.log" 2>&1 &
        running+=($!)
    done
}

# Wait for them and show what they said; false where one failed.
finish_other_pythons() {
    local index failed=0
    for index in "${!ready[@]}"; do
        wait "${running[$index]}" || failed=1
        echo "== core and target on Python ${ready[$index]}"
        cat "$PYTHONS_PLACE/${ready[$index]}.log"
    done
    return "$failed"
}

# Make their environments side by side: that is downloading and unpacking.
prepare_others() {
    local name version index preparing=() said=()
    mkdir -p "$PYTHONS_PLACE"
    for name in $OTHER_PYTHONS; do
        said+=("$PYTHONS_PLACE/${#said[@]}.version")
        prepare_other "$name" >"${said[-1]}" &
        preparing+=($!)
    done
    for index in "${!said[@]}"; do
        wait "${preparing[$index]}" || continue
        version=$(cat "${said[$index]}")
        [ -z "$version" ] || ready+=("$version") # none: it is the Python of .venv, on which the whole suite runs
    done
}

# Make the environment of the Python $1 and print its version, which is the environment's name.
prepare_other() {
    local python version
    python=$(find_other "$1") || {
        echo "$1: not run, there is none that runs (PYTHONS names others, by name or path)" >&2
        return 1
    }
    version=$("$python" -c 'import sys; print("{}.{}".format(*sys.version_info))')
    if [ "$version" = "$("$VENV/bin/python" -c 'import sys; print("{}.{}".format(*sys.version_info))')" ]; then
        return
    fi
    fill_other "$python" "$version" >&2 || {
        echo "$1: not run, its environment $PYTHONS_PLACE/$version cannot be made" >&2
        return 1
    }
    echo "$version"
}

# A Python of this name that runs: on the PATH (where pyenv leaves names that do not run), or one of pyenv's.
find_other() {
    local candidate
    for candidate in "$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/"$1"; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

# Make the environment for version $2 with Python $1; needs no network when a stamp says that this was done.
fill_other() (
    VENV=$PYTHONS_PLACE/$2
    # The checkout's place belongs to it, because the checkout is installed from where it lies.
    if has_pip && [ "$(cat "$VENV/ready-to-test" 2>/dev/null)" = "$(stamp) $PWD" ]; then
        exit 0
    fi
    echo "Making the environment $VENV with $("$1" --version): about 100 MB with pip, from the index it is configured for."
    rm -rf "$VENV"
    "$1" -m venv "$VENV" &&
        pip_install "pip>=25.1" &&
        pip_install --editable ".[server,serve,plan,json,discover,cpu]" --group test &&
        echo "$(stamp) $PWD" >"$VENV/ready-to-test"
)
