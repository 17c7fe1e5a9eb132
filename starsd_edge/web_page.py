"""The headers under which a browser runs a page of ours and nothing else.

A page is one file with one script and one style in it. Its policy names both by their digests, so no text that is shown
in it is ever run, whatever a model or a peer wrote; and it lets the page speak with its own server alone.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping

_STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)


def page_headers(html: str) -> Mapping[str, str]:
    """For the response that holds this page."""
    policy = {
        "default-src": "'none'",
        "script-src": _digests(_SCRIPT, html),
        "style-src": _digests(_STYLE, html),
        "connect-src": "'self'",
        "form-action": "'none'",
        "base-uri": "'none'",
        "frame-ancestors": "'none'",
    }
    return {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }


def _digests(pattern: re.Pattern[str], html: str) -> str:
    found = (hashlib.sha256(part.encode()).digest() for part in pattern.findall(html))
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in found)
