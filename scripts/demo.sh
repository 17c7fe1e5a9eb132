#!/usr/bin/env bash
# A star on this machine: fetches and exports the default model, then starts one hub and three targets and shows their
# answers side by side. Installs what it needs into .venv the first time; works offline afterwards.
#
#   bash scripts/demo.sh            panels, on a terminal
#   bash scripts/demo.sh --plain    lines, for logs (further options go to `starsd-edge demo`)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/environment.sh
source scripts/environment.sh

MODEL=smollm2-135m

starsd() { "$VENV/bin/starsd-edge" "$@"; }

# Why a bundle in the cache has to be made; nothing where it can be used as it is.
why_make() {
    "$VENV/bin/python" - "$1" <<'PYTHON'
import sys
from starsd_edge.bundles.bundle import why_make
from starsd_edge.bundles.cache import bundles_dir
print(why_make(bundles_dir() / sys.argv[1]))
PYTHON
}

prepare_environment run
export HF_HUB_OFFLINE=1 # nothing here asks a model hub for anything

echo "The default model, SmolLM2-135M-Instruct (a download of 93 MB, once):"
starsd pull $MODEL
# The targets run the fp32 bundle; the hub drafts with the smaller int8 one.
for weights in fp32 int8; do
    why=$(why_make $MODEL-$weights)
    if [ -n "$why" ]; then
        echo "Exporting $MODEL with $weights weights (about a minute; $why):"
        starsd export $MODEL --weights $weights
    fi
done
starsd demo --target $MODEL-fp32 --draft $MODEL-int8 "$@"
