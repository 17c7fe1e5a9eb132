"""Which drafter a bundle is for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from starsd_edge.bundles.bundle import bundle_kind
from starsd_edge.bundles.cache import expanded
from starsd_edge.cli.settings_files import read_toml
from starsd_edge.errors import UsageError
from starsd_edge.heads.draft_bundle import DRAFT_KIND
from starsd_edge.heads.loading import AUTO, CPU
from starsd_edge.key_file import read_token

if TYPE_CHECKING:
    from starsd_server.drafters.contract import Drafter
    from starsd_server.gate import HubKey


_EAGLE, _CAUSAL_LM = "eagle", "causal-lm"


def drafter_kind(path: Path) -> str:
    """The kind of drafter that runs the bundle at this path.

    Raises:
        BundleError: no bundle, or a damaged manifest.
    """
    return _EAGLE if bundle_kind(path) == DRAFT_KIND else _CAUSAL_LM


def open_drafters(
    paths: Sequence[Path], max_sessions: int, threads: int | None, device: str = CPU, precision: str = AUTO
) -> list[Drafter]:
    """A drafter for each bundle; those of one kind are numbered, so that a hub can tell them apart.

    Args:
        max_sessions: sequences that each holds state for at once.
        threads: of each engine, None for one per core.
        device: "cpu", "cuda" or "auto". "auto" takes a GPU for heads alone: see `heads.loading.open_head`. Models are
            opened as a target's: see `runtime.loading.open_engine`.
        precision: of heads, as in `open_head`.

    Raises:
        UsageError: a device or a precision that there is not, or a precision and no head.
        BundleError: no bundle, or a broken one.
        EngineError: a graph cannot be loaded.
    """
    drafters: list[Drafter] = []
    seen: Counter[str] = Counter()
    kinds = [drafter_kind(path) for path in paths]
    if precision != AUTO and _EAGLE not in kinds:
        raise UsageError(f"--draft-precision is for draft heads, and {paths[0]} is a model: leave it out")
    for path, kind in zip(paths, kinds, strict=True):
        seen[kind] += 1
        name = kind if seen[kind] == 1 else f"{kind}-{seen[kind]}"
        if kind == _EAGLE:
            drafters.append(_eagle(path, max_sessions, threads, name, device, precision))
        else:
            drafters.append(_causal_lm(path, max_sessions, threads, name, device))
    return drafters


def _eagle(path: Path, max_sessions: int, threads: int | None, name: str, device: str, precision: str) -> Drafter:
    from starsd_edge.heads.draft_bundle import draft_ids, load_draft_bundle
    from starsd_edge.heads.loading import open_head
    from starsd_server.drafters.eagle import EagleDrafter

    bundle = load_draft_bundle(path)
    manifest = bundle.manifest
    return EagleDrafter(
        open_head(bundle, threads, device, precision),
        draft_ids(bundle),
        manifest.fingerprint,
        manifest.accepts,
        max_sessions,
        name,
        manifest.target_export,
    )


def _causal_lm(path: Path, max_sessions: int, threads: int | None, name: str, device: str) -> Drafter:
    from starsd_edge.bundles.bundle import load_bundle
    from starsd_edge.runtime.loading import open_engine
    from starsd_server.drafters.causal_lm import CausalLmDrafter

    bundle = load_bundle(path)
    manifest = bundle.manifest
    engine = open_engine(bundle, CPU if device == AUTO else device, threads, kv_on_demand=True)
    tokenizer_fp = manifest.fingerprints.tokenizer_fp
    return CausalLmDrafter(engine, tokenizer_fp, manifest.model.tokenizer_size, max_sessions, name)


class _Table(msgspec.Struct, rename="kebab", forbid_unknown_fields=True):
    token_file: str
    weight: Annotated[float, Meta(ge=0.01, le=100)] = 1.0
    priority: Annotated[int, Meta(ge=-9, le=9)] = 0


def read_keys(path: Path) -> tuple[HubKey, ...]:
    """Keys with terms of their own from a TOML file, a table for each:

        [kitchen]
        token-file = "kitchen.token"     # beside this file
        weight = 3
        priority = 1

    As in the configuration there is no option for a secret, only for the path of the file that holds it.

    Raises:
        UsageError: the file cannot be read, holds anything else than such tables, or two keys have one token.
    """
    from starsd_edge.scheduling.policies import KeyTerms
    from starsd_server.gate import HubKey

    try:
        tables = msgspec.convert(read_toml(path, "the keys in"), dict[str, _Table])
    except msgspec.ValidationError as error:
        hint = "a key is a table like [NAME] with token-file, weight and priority"
        raise UsageError(f"{path} does not fit: {error}; {hint}") from None
    keys: dict[str, HubKey] = {}
    for name, table in tables.items():
        token = read_token(path.parent / expanded(table.token_file))
        if token in keys:
            raise UsageError(f"[{name}] in {path} has the token of a key before it: give each its own")
        keys[token] = HubKey(token, KeyTerms(table.weight, table.priority))
    if not keys:
        raise UsageError(f"there is no key in {path}: write a table like [NAME] with a token-file")
    return tuple(keys.values())
