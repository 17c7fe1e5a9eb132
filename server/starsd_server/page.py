"""The page at `/` for a browser: the star as `/status` tells it, drawn anew each second. It knows no token: it asks."""

from __future__ import annotations

import json
from functools import cache
from http import HTTPStatus
from importlib.resources import files

from starsd_edge.protocol.codes import MEANINGS
from starsd_edge.web_page import page_headers
from starsd_server.front_door import Page

_WORDS = "$WORDS"
"""In the file, where the meanings of the reasons for rounds without a draft stand."""


@cache
def star_page() -> Page:
    """The page."""
    html = files("starsd_server").joinpath("star.html").read_text("utf-8")
    html = html.replace(_WORDS, json.dumps(MEANINGS).replace("<", "\\u003c"))
    return Page(HTTPStatus.OK, html, "text/html; charset=utf-8", page_headers(html))
