#!/usr/bin/env bash
# A star on this machine: fetches and exports the default model, then starts one hub and three targets and shows their
# answers side by side; then one target without and with the hub, as a table. Two to three minutes after the first time,
# which installs what it needs into .venv; works offline afterwards.
#
#   bash scripts/demo.sh            panels, on a terminal
#   bash scripts/demo.sh --plain    lines, for logs (further options go to `starsd-edge demo`)
#   bash scripts/demo.sh --help     this and the options; nothing is fetched
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/environment.sh
source scripts/environment.sh

MODEL=smollm2-135m

starsd() { "$VENV/bin/starsd-edge" "$@"; }

# What stands at the top of this file, and the options as far as they are installed.
show_help() {
    sed -n '2,/^set /{s/^# \{0,1\}//p}' scripts/demo.sh
    [ ! -x "$VENV/bin/starsd-edge" ] || starsd demo --help
}

for argument; do
    case $argument in
        -h | --help)
            show_help
            exit
            ;;
    esac
done

# Why a bundle in the cache has to be made; nothing where it can be used as it is.
why_make() {
    "$VENV/bin/python" - "$MODEL" "$1" <<'PYTHON'
import sys
from starsd_edge.bundles.bundle import why_make
from starsd_edge.bundles.cache import bundles_dir
from starsd_export.draft_heads.trained import why_make_shipped

model, kind = sys.argv[1:]
path = bundles_dir() / f"{model}-{kind}"
print(why_make_shipped(path, model) if kind == "eagle-int8" else why_make(path))
PYTHON
}

prepare_environment run
export HF_HUB_OFFLINE=1 # nothing here asks a model hub for anything
starsd demo "$@" --help >/dev/null # an option that there is not is told before minutes of work

echo "The default model, SmolLM2-135M-Instruct (a download of 93 MB, once):"
starsd pull $MODEL
why=$(why_make fp32)
if [ -n "$why" ]; then
    echo "Exporting $MODEL for the targets (about a minute; $why):"
    starsd export $MODEL --weights fp32
fi
why=$(why_make eagle-int8)
if [ -n "$why" ]; then
    echo "Making the hub's draft bundle of the head that comes for $MODEL (some seconds; $why):"
    starsd export $MODEL --draft-head shipped
fi
starsd demo --target $MODEL-fp32 --draft $MODEL-eagle-int8 "$@"
