"""The keys of a hub: what their holders show at the door, and what they get of the drafter."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from starsd_server.scheduling.contract import KeyTerms


@dataclass(frozen=True)
class HubKey:
    """One bearer token.

    Attributes:
        token: the secret; never shown.
        terms: of all sessions that belong to it.
    """

    token: str = field(repr=False)
    terms: KeyTerms = field(default_factory=KeyTerms)

    @property
    def owner(self) -> str:
        """Its name inside the hub; not the key."""
        return hashlib.sha256(self.token.encode()).hexdigest()[:16]
