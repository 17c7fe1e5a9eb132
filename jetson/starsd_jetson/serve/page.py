"""The chat page at `/`: one static file, and the headers under which a browser runs that file and nothing else.

The page knows no key and asks for nothing but this server's own API. Its policy names its one script and its one style
by their digests, so whatever text a model writes, none of it is run.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

from starlette.responses import Response

PATH = "/"
_STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)


@cache
def page_text() -> str:
    """The file."""
    return files("starsd_jetson.serve").joinpath("page.html").read_text("utf-8")


@cache
def content_security_policy() -> str:
    """The policy of the file as it is."""
    parts = {
        "default-src": "'none'",
        "script-src": _digests(_SCRIPT),
        "style-src": _digests(_STYLE),
        "connect-src": "'self'",
        "form-action": "'none'",
        "base-uri": "'none'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in parts.items())


def _digests(pattern: re.Pattern[str]) -> str:
    found = (hashlib.sha256(part.encode()).digest() for part in pattern.findall(page_text()))
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in found)


def chat_page() -> Response:
    """The response to a browser."""
    headers = {
        "Content-Security-Policy": content_security_policy(),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }
    return Response(page_text(), media_type="text/html", headers=headers)
