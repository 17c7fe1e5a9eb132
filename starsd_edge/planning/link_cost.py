"""What a link adds to a round: its round-trip time, and the round's bytes at its rate."""

from __future__ import annotations

from dataclasses import dataclass

ROW_BYTES = 8
"""Of a row beside its features: the id, and its part of the frame."""
REQUEST_BYTES = 72
"""Of a draft request without rows: tag, epoch, shape, frame, and the headers below it."""
NODE_BYTES = 5
"""Of a node: id and parent."""
DRAFT_BYTES = 88
"""Of a DRAFT without nodes."""


@dataclass(frozen=True)
class Link:
    """Between a target and its hub.

    Attributes:
        rtt_s: of a small message.
        up_bytes_per_s, down_bytes_per_s: of large ones.
    """

    rtt_s: float
    up_bytes_per_s: float
    down_bytes_per_s: float

    def seconds(self, up_bytes: float, down_bytes: float) -> float:
        """What it adds to a round."""
        return self.rtt_s + up_bytes / self.up_bytes_per_s + down_bytes / self.down_bytes_per_s


def bytes_up(tokens: float, feature_bytes: float) -> float:
    """Of a round of so many tokens, whose rows carry so many bytes of features each."""
    return REQUEST_BYTES + tokens * (ROW_BYTES + feature_bytes)


def bytes_down(nodes: float) -> float:
    """Of a draft of so many nodes."""
    return DRAFT_BYTES + nodes * NODE_BYTES
