"""Checks of a hub as a target meets it."""

from __future__ import annotations

from collections.abc import Iterator

from starsd_edge.bundles.manifest import Fingerprints
from starsd_edge.doctor.findings import Finding, Level
from starsd_edge.protocol.messages import Welcome

_FINGERPRINT_DIGITS = 12


def check_welcome(
    url: str, bundle: str | None, fingerprints: Fingerprints | None, welcome: Welcome
) -> Iterator[Finding]:
    """A hub that let this machine in.

    Args:
        bundle: for which it was asked; None where there was none to ask for.
        fingerprints: of that bundle.
    """
    yield Finding("hub", Level.OK, f"{url} lets this machine in (wire version {welcome.version})")
    if bundle is None or fingerprints is None:
        yield Finding(
            "drafter", Level.NOT_RUN, "no bundle for which to ask", "name one: starsd-edge doctor BUNDLE --hub URL"
        )
        return
    drafter = f"{bundle}: {welcome.drafter}"
    if welcome.notice:
        yield Finding("drafter", Level.WARNING, f"{drafter}, because {welcome.notice}")
    else:
        yield Finding(
            "drafter", Level.OK, f"{drafter}, {welcome.max_nodes} nodes and {welcome.max_depth} levels at most"
        )
    prints = f"tokenizer {_short(fingerprints.tokenizer_fp)}, drafter {_short(welcome.drafter_fp)}"
    yield Finding("fingerprints", Level.OK, f"{bundle}: {prints}")


def _short(fingerprint: str) -> str:
    return fingerprint[:_FINGERPRINT_DIGITS] or "none"
