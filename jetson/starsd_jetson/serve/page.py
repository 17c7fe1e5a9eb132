"""The chat page at `/`: one static file that knows no key and asks for nothing but this server's own API."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from starlette.responses import Response

from starsd_edge.web_page import page_headers

PATH = "/"


@cache
def _text() -> str:
    return files("starsd_jetson.serve").joinpath("page.html").read_text("utf-8")


def chat_page() -> Response:
    """The response to a browser."""
    return Response(_text(), media_type="text/html", headers=dict(page_headers(_text())))
