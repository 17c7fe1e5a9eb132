"""The star at / of a hub, in a real browser: targets, links, speeds, and why drafting is off."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import pytest

from starsd_edge.protocol.codes import LATE, MEANINGS
from starsd_edge.protocol.messages import Report, Welcome
from starsd_server.page import star_page
from starsd_server.settings import DoorSettings, HubSettings
from tests.support.browser import Page, browser
from tests.support.hub_client import HubClient, RunningHub, hello, running_hub

Value = TypeVar("Value")
EVIL = "<img src=x onerror=document.title=1>"


def test_the_policy_names_the_one_script_and_the_one_style() -> None:
    page = star_page()
    policy = dict(part.split(" ", 1) for part in page.headers["Content-Security-Policy"].split("; "))
    for tag, name in (("script", "script-src"), ("style", "style-src")):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page.body, re.DOTALL)
        assert policy[name] == f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"
    text = page.body.replace("http://www.w3.org/2000/svg", "")
    assert not re.findall(r"(?:src|href)=|https?://|innerHTML|eval\(", text), "nothing from elsewhere, no text as code"
    assert MEANINGS[LATE] in page.body


async def test_a_browser_gets_the_page_and_a_target_its_link() -> None:
    async with running_hub(settings=HubSettings(DoorSettings(token="secret"))) as hub:
        status, body = await hub.get("/")
        assert (status, "<title>starsd-edge hub</title>" in body) == (200, True)
        assert (await hub.get("/status"))[0] == 401
        async with hub.client("secret") as target:
            await target.send(hello())
            await target.expect(Welcome)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A tab; the tests are skipped where there is no browser."""
    with browser(tmp_path_factory.mktemp("browser")) as tab:
        yield tab


async def seen(look: Callable[..., Value], *arguments: Any) -> Value:
    """What the browser says, while the hub goes on."""
    return await asyncio.to_thread(look, *arguments)


async def visit(page: Page, hub: RunningHub) -> None:
    page.complaints.clear()
    await seen(page.open, f"http://127.0.0.1:{hub.port}/")


@asynccontextmanager
async def target(hub: RunningHub, name: str, report: Report | None = None) -> AsyncIterator[HubClient]:
    async with hub.client() as client:
        await client.send(hello(target=name))
        await client.expect(Welcome)
        if report is not None:
            await client.send(report)
        yield client


def row(name: str) -> str:
    """A script for the cells of a target's row, as one text."""
    return (
        f"[...document.querySelectorAll('#targets tr')].find(row => row.cells[0].textContent === {name!r})?.innerText"
    )


async def test_targets_come_with_speeds_and_reasons_and_go(page: Page) -> None:
    async with running_hub() as hub:
        await visit(page, hub)
        assert await seen(page.until, "document.querySelector('#state').textContent") in ("connecting", "live")
        await seen(page.until, "document.querySelector('#load').textContent.includes('0 targets')")
        report = Report(10, 6, 0, 30, 1_000_000, 200_000, 300_000, 20)
        late = Report(10, 6, 0, 30, 1_000_000, 200_000, 300_000, 20, LATE)
        async with target(hub, "orin", report), target(hub, "nano", late), target(hub, EVIL):
            cells = await seen(page.until, row("orin"))
            assert re.split(r"\s*\t\s*", cells.strip())[2:4] == ["30.0", "20.0"], "with drafts, and plain"
            assert cells.strip().endswith("on")
            assert MEANINGS[LATE] in await seen(page.until, row("nano"))
            assert "no answer yet" in await seen(page.until, row(EVIL))
            assert await seen(page.run, "document.querySelectorAll('img').length") == 0
            assert await seen(page.run, "document.querySelectorAll('#star g.on').length") == 1
            assert await seen(page.run, "document.querySelectorAll('#star g.off').length") == 2
            assert "eagle" not in await seen(page.text, "#hub")
        await seen(page.until, "document.querySelectorAll('#targets tr').length === 0")
        assert page.complaints == []


async def test_a_crowd_is_drawn_in_part_and_listed_whole(page: Page) -> None:
    async with running_hub() as hub, AsyncExitStack() as stack:
        for number in range(50):
            await stack.enter_async_context(target(hub, f"orin-{number}"))
        await visit(page, hub)
        await seen(page.until, "document.querySelectorAll('#targets tr').length === 50")
        assert await seen(page.run, "document.querySelectorAll('#star g').length") == 24
        assert "and 26 more in the table" in await seen(page.text, "#star")
        for width in (390, 1280):
            await seen(page.size, width, 800)
            assert await seen(page.run, "document.documentElement.scrollWidth <= window.innerWidth")


async def test_a_hub_that_goes_is_said_and_one_that_comes_back_is_followed(page: Page) -> None:
    async with running_hub() as hub:
        await visit(page, hub)
        await seen(page.until, "document.querySelector('#state').textContent === 'live'")
    await seen(page.until, "document.querySelector('#state').textContent === 'the hub does not answer'")
    async with running_hub(port=hub.port):
        await seen(page.until, "document.querySelector('#state').textContent === 'live'")


async def test_a_token_is_asked_for_and_kept_in_the_tab(page: Page) -> None:
    async with running_hub(settings=HubSettings(DoorSettings(token="secret"))) as hub:
        await visit(page, hub)
        await seen(page.until, "document.querySelector('#keyform') && !document.querySelector('#keyform').hidden")
        assert await seen(page.run, "document.querySelector('#parts').hidden")
        await seen(page.write, "#key", "wrong")
        await seen(page.press, "#keyform button")
        await seen(page.until, "document.querySelector('#key').value === '' && sessionStorage.length === 0")
        await seen(page.write, "#key", "secret")
        await seen(page.press, "#keyform button")
        await seen(page.until, "!document.querySelector('#parts').hidden")
        assert await seen(page.run, "document.cookie + localStorage.length") == "0"
