"""The heads that come with this program, and whether a draft bundle is still one of them."""

from __future__ import annotations

import json
from pathlib import Path

from starsd_edge.errors import BundleError
from starsd_edge.heads.draft_bundle import load_draft_bundle

SHIPPED = "shipped"
"""In place of a directory: the head of ours that was trained for the target's model."""
SHIPPED_HEADS = Path(__file__).parent / "shipped"
HEAD_JSON = "head.json"


def why_make_shipped(path: Path, model: str) -> str:
    """Why the draft bundle at this place has to be made, or made again; "" where it is whole and holds the head that
    comes for this model.
    """
    if not path.exists():
        return "there is none yet"
    try:
        manifest = load_draft_bundle(path).manifest
    except BundleError:
        return "the one that is there is damaged, or of another version"
    shipped = json.loads((SHIPPED_HEADS / model / HEAD_JSON).read_text(encoding="utf-8"))
    return "" if manifest.trained == shipped["trained"] else "the one that is there holds an older head"
