"""Which drafter a bundle is for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starsd_server.drafters.contract import Drafter


def open_drafter(path: Path, max_sessions: int, threads: int | None) -> Drafter:
    """The drafter that runs the bundle at this path: a head, or a model of its own.

    Args:
        max_sessions: sequences it holds state for at once.
        threads: of its engine, None for one per core.

    Raises:
        BundleError: no bundle, or a broken one.
        EngineError: its graph cannot be loaded.
    """
    from starsd_edge.bundles.bundle import bundle_kind
    from starsd_edge.heads.draft_bundle import DRAFT_KIND

    make = _eagle if bundle_kind(path) == DRAFT_KIND else _causal_lm
    return make(path, max_sessions, threads)


def _eagle(path: Path, max_sessions: int, threads: int | None) -> Drafter:
    from starsd_edge.heads.draft_bundle import draft_ids, load_draft_bundle, open_head
    from starsd_server.drafters.eagle import EagleDrafter

    bundle = load_draft_bundle(path)
    manifest = bundle.manifest
    head = open_head(bundle, threads)
    return EagleDrafter(head, draft_ids(bundle), manifest.fingerprint, manifest.accepts, max_sessions)


def _causal_lm(path: Path, max_sessions: int, threads: int | None) -> Drafter:
    from starsd_edge.bundles.bundle import load_bundle
    from starsd_edge.runtime.loading import open_engine
    from starsd_server.drafters.causal_lm import CausalLmDrafter

    bundle = load_bundle(path)
    manifest = bundle.manifest
    engine = open_engine(bundle, threads=threads)
    return CausalLmDrafter(engine, manifest.fingerprints.tokenizer_fp, manifest.model.tokenizer_size, max_sessions)
