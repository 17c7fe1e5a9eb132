"""The chat page: what it may do by its headers, and what a person sees of it in a real browser."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from starsd_jetson.serve.door import DoorRules
from starsd_jetson.serve.server import ServeSettings
from tests.serve.conftest import ServeEcho
from tests.support.browser import Page, browser
from tests.support.echo_model import knowing
from tests.support.scripted_hub import ScriptedHub
from tests.support.served import Served

CHAT = "/v1/chat/completions"
EVIL = "<img src=x onerror=\"document.title='gone'\"><script>document.title='gone'</script>"


def test_the_policy_names_the_one_script_and_the_one_style(echo: Served) -> None:
    page = echo.page("/")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
    for tag, name in (("script", "script-src"), ("style", "style-src")):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page.data.decode(), re.DOTALL)
        assert policy[name] == f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"
    assert (policy["default-src"], policy["connect-src"], policy["frame-ancestors"]) == ("'none'", "'self'", "'none'")
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["cache-control"] == "no-store"
    text = page.data.decode()
    assert not re.findall(r"(?:src|href)=|https?://|innerHTML|eval\(", text), "nothing from elsewhere, no text as code"


def test_the_page_is_for_everybody_and_the_api_is_not(serve_echo: ServeEcho) -> None:
    server = serve_echo(settings=ServeSettings(door=DoorRules(keys=("secret",))))
    assert server.page("/").status == 200
    assert server.page("/v1/models").status == 401


def stream(server: Served, **more: object) -> list[dict[str, object]]:
    body = {"model": "small", "messages": [{"role": "user", "content": "Grüße, 你好"}], "stream": True} | more
    reply = server.ask(CHAT, body)
    assert reply.status == 200, reply
    return [event for event in reply.events if event != "[DONE]"]


def test_the_parts_by_source_are_the_text_and_come_only_where_asked_for(serve_echo: ServeEcho) -> None:
    with ScriptedHub(knowing) as hub:
        server = serve_echo(hub=f"ws://127.0.0.1:{hub.port}")
        chunks = stream(server, temperature=0, return_token_sources=True)
        choices = [choice for chunk in chunks for choice in chunk["choices"]]  # type: ignore[attr-defined]
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
        parts = [part for choice in choices for part in choice.get("token_sources", [])]
        assert "".join(part for part, _ in parts) == text == "Grüße, 你好"
        assert {"hub", "none"} <= {source for _, source in parts}
        speed = chunks[-1]["metrics"]["speed"]  # type: ignore[index]
        assert speed["tokens_per_s"] > 0
        assert not [chunk for chunk in stream(server, temperature=0) if "token_sources" in str(chunk)]


def test_sources_are_refused_where_they_would_not_be_true(echo: Served) -> None:
    ask = {"model": "small", "messages": [{"role": "user", "content": "x"}], "return_token_sources": True}
    reply = echo.ask(CHAT, ask)
    assert (reply.status, reply.error["param"]) == (400, "return_token_sources")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A tab; the tests are skipped where there is no browser."""
    with browser(tmp_path_factory.mktemp("browser")) as tab:
        yield tab


def visit(page: Page, server: Served) -> None:
    page.complaints.clear()
    page.open(f"http://127.0.0.1:{server.port}/")
    page.until("document.readyState === 'complete' && document.querySelector('#model')?.textContent !== 'starsd-edge'")


def say(page: Page, text: str) -> str:
    """The answer to a message."""
    answers = page.run("document.querySelectorAll('.figures').length")
    page.write("#temperature", "0")
    page.write("#message", text)
    page.press("#send")
    page.until(f"document.querySelectorAll('.figures').length > {answers} && !document.querySelector('#send').disabled")
    return str(page.run("[...document.querySelectorAll('.turn:not(.user)')].at(-1).textContent"))


def test_an_answer_is_shown_with_its_sources_and_speed(page: Page, serve_echo: ServeEcho) -> None:
    with ScriptedHub(knowing) as hub:
        server = serve_echo(hub=f"ws://127.0.0.1:{hub.port}", settings=ServeSettings(names=("echo",)))
        visit(page, server)
        assert page.text("#model") == "echo"
        assert page.until("document.querySelector('#state').textContent") == "hub: up"
        assert say(page, "Zwölf Boxkämpfer 你好 🎈") == "Zwölf Boxkämpfer 你好 🎈"
        hubs = page.run("[...document.querySelectorAll('.turn:not(.user) .hub')].map(part => part.textContent)")
        assert len("".join(hubs)) > 5
        assert re.search(r"[0-9.]+ tokens/s.*[1-9]\d* of \d+ draft tokens accepted", page.text(".figures"))
        colours = page.run(
            "['hub', 'ngram', 'none'].map(name => { const part = document.createElement('span'); "
            "part.className = name; document.querySelector('#chat').append(part); "
            "return getComputedStyle(part).color; })"
        )
        assert len(set(colours)) == 3, "each source has a colour of its own"
        assert page.complaints == []


def test_what_a_model_writes_stays_text(page: Page, serve_echo: ServeEcho) -> None:
    visit(page, serve_echo(context=512))
    title = page.run("document.title")
    assert say(page, EVIL) == EVIL
    assert page.run("document.title") == title
    assert page.run("document.querySelectorAll('#chat img, #chat script').length") == 0


def test_a_chat_goes_on_and_begins_anew(page: Page, echo: Served) -> None:
    visit(page, echo)
    assert say(page, "one") == "one"
    assert say(page, "two") == "two"
    assert page.run("turns.map(turn => turn.content)") == ["one", "one", "two", "two"]
    page.press("#anew")
    assert page.run("turns.length") == 0
    assert page.text("#chat") == ""


def test_enter_sends_and_stop_ends_an_answer(page: Page, serve_echo: ServeEcho) -> None:
    visit(page, serve_echo(context=4096, speculation=False))
    page.write("#message", "a" * 3000)
    page.run(
        "document.querySelector('#message').dispatchEvent("
        "new KeyboardEvent('keydown', { key: 'Enter', bubbles: true, cancelable: true }))"
    )
    page.until("document.querySelectorAll('.turn:not(.user)').length && !document.querySelector('#stop').hidden")
    page.until("document.querySelector('.turn:not(.user)').textContent.length > 5")
    page.press("#stop")
    page.until("document.querySelector('#stop').hidden")
    assert page.text(".figures") == "stopped"
    assert len(page.text(".turn:not(.user)")) < 3000


def test_a_key_is_asked_for_and_kept_in_the_tab(page: Page, serve_echo: ServeEcho) -> None:
    server = serve_echo(settings=ServeSettings(names=("locked",), door=DoorRules(keys=("secret",))))
    page.open(f"http://127.0.0.1:{server.port}/")
    page.until("document.querySelector('#keyform') && !document.querySelector('#keyform').hidden")
    page.write("#key", "wrong")
    page.press("#keyform button")
    page.until("document.querySelector('#key').value === '' && !document.querySelector('#keyform').hidden")
    page.write("#key", "secret")
    page.press("#keyform button")
    page.until("document.querySelector('#model').textContent === 'locked'")
    assert say(page, "hello") == "hello"
    assert page.run("Object.keys(localStorage).length") == 0
    assert page.run("document.cookie") == ""


def test_a_refusal_and_a_lost_server_are_said(page: Page, echo: Served) -> None:
    visit(page, echo)
    page.write("#message", "x" * 4000)
    page.press("#send")
    page.until("document.querySelector('.note') !== null")
    assert "the prompt has 4002 tokens" in page.text(".note")
    page.run("window.fetch = () => Promise.reject(new TypeError('gone'))")
    page.write("#message", "hello")
    page.press("#send")
    page.until("[...document.querySelectorAll('.note')].some(note => /is lost/.test(note.textContent))")


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_sticks_out_of_the_window(page: Page, echo: Served, width: int, tmp_path: Path) -> None:
    page.size(width, 720)
    visit(page, echo)
    say(page, "long" * 20)
    assert page.run("document.documentElement.scrollWidth <= window.innerWidth")
    page.picture(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 5000
