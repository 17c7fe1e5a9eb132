"""What the shell offers for a word that is being typed. It runs at every press of the key, so it imports next to
nothing.
"""

from __future__ import annotations

from starsd_edge.errors import StarsdError


def bundle_names(incomplete: str) -> list[str]:
    """Bundles in the cache; the shell itself offers paths where no name fits."""
    from starsd_edge.bundles import cache

    try:
        return [name for name in cache.bundle_names() if name.startswith(incomplete)]
    except StarsdError:  # there is no cache
        return []


def model_names(incomplete: str) -> list[str]:
    """Models that can be fetched by name."""
    from starsd_edge.bundles.catalogue import CATALOGUE

    return [name for name in CATALOGUE if name.startswith(incomplete)]
