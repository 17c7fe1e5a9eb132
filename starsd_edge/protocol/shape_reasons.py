"""Why a target's drafts are as large as they are, as a hub tells it.

Reasons are only ever added; a monitor shows one that it does not know as it is.
"""

from __future__ import annotations

FIRST = "first"
BEST = "best"
LOAD = "load"
NOT_PAYING = "not_paying"
TRIAL = "trial"
FIXED = "fixed"

MEANINGS = {
    FIRST: "what it asks for, until enough is known of it",
    BEST: "the best for this target",
    LOAD: "shorter, because of the others",
    NOT_PAYING: "none: plain decoding is faster",
    TRIAL: "tried again, to see whether it pays by now",
    FIXED: "as the hub was told",
}
