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

# A bundle that is there and whole need not be made again.
is_exported() {
    "$VENV/bin/python" - "$1" 2>/dev/null <<'PYTHON'
import sys
from starsd_edge.bundles.bundle import load_bundle
from starsd_edge.bundles.cache import find_bundle
load_bundle(find_bundle(sys.argv[1]))
PYTHON
}

prepare_environment run
export HF_HUB_OFFLINE=1 # nothing here asks a model hub for anything

echo "The default model, SmolLM2-135M-Instruct (93 MB, fetched once):"
starsd pull $MODEL
# The targets run the fp32 bundle; the hub drafts with the smaller int8 one.
for weights in fp32 int8; do
    if ! is_exported $MODEL-$weights; then
        echo "Exporting $MODEL with $weights weights (once, about a minute):"
        starsd export $MODEL --weights $weights
    fi
done
starsd demo --target $MODEL-fp32 --draft $MODEL-int8 "$@"
