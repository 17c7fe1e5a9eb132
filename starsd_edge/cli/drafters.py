"""Which drafter a bundle is for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from starsd_edge.bundles.bundle import bundle_kind
from starsd_edge.heads.draft_bundle import DRAFT_KIND

if TYPE_CHECKING:
    from starsd_server.drafters.contract import Drafter

_EAGLE, _CAUSAL_LM = "eagle", "causal-lm"


def drafter_kind(path: Path) -> str:
    """The kind of drafter that runs the bundle at this path.

    Raises:
        BundleError: no bundle, or a damaged manifest.
    """
    return _EAGLE if bundle_kind(path) == DRAFT_KIND else _CAUSAL_LM


def open_drafters(paths: Sequence[Path], max_sessions: int, threads: int | None) -> list[Drafter]:
    """A drafter for each bundle; those of one kind are numbered, so that a hub can tell them apart.

    Args:
        max_sessions: sequences that each holds state for at once.
        threads: of each engine, None for one per core.

    Raises:
        BundleError: no bundle, or a broken one.
        EngineError: a graph cannot be loaded.
    """
    drafters: list[Drafter] = []
    seen: Counter[str] = Counter()
    for path in paths:
        kind = drafter_kind(path)
        seen[kind] += 1
        name = kind if seen[kind] == 1 else f"{kind}-{seen[kind]}"
        make = _eagle if kind == _EAGLE else _causal_lm
        drafters.append(make(path, max_sessions, threads, name))
    return drafters


def _eagle(path: Path, max_sessions: int, threads: int | None, name: str) -> Drafter:
    from starsd_edge.heads.draft_bundle import draft_ids, load_draft_bundle, open_head
    from starsd_server.drafters.eagle import EagleDrafter

    bundle = load_draft_bundle(path)
    manifest = bundle.manifest
    return EagleDrafter(
        open_head(bundle, threads),
        draft_ids(bundle),
        manifest.fingerprint,
        manifest.accepts,
        max_sessions,
        name,
        manifest.target_export,
    )


def _causal_lm(path: Path, max_sessions: int, threads: int | None, name: str) -> Drafter:
    from starsd_edge.bundles.bundle import load_bundle
    from starsd_edge.runtime.loading import open_engine
    from starsd_server.drafters.causal_lm import CausalLmDrafter

    bundle = load_bundle(path)
    manifest = bundle.manifest
    engine = open_engine(bundle, threads=threads)
    tokenizer_fp = manifest.fingerprints.tokenizer_fp
    return CausalLmDrafter(engine, tokenizer_fp, manifest.model.tokenizer_size, max_sessions, name)
