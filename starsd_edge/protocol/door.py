"""What a hub's HTTP status means to those who knock, targets and monitors alike."""

from __future__ import annotations

NOT_LET_IN = (401, 403)
MISDIRECTED = 421
"""The name in the address is none of loopback, and a hub without a token answers to no other."""

LOOPBACK_ONLY = "it has no token, and without one it answers to a loopback address only"


def token_remedy(has_token: bool) -> str:
    """What to do about one of `NOT_LET_IN`."""
    return "check --token-file" if has_token else "give its token with --token-file"
