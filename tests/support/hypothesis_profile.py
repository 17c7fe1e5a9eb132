"""How hypothesis runs here: the same examples every time, and no deadlines, since no test may depend on speed.

A conftest calls `use_profile`.
"""

from __future__ import annotations

from hypothesis import settings


def use_profile() -> None:
    settings.register_profile("starsd", deadline=None, derandomize=True, database=None)
    settings.load_profile("starsd")
