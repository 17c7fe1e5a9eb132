"""A real browser without a window: Chromium of the system's packages, driven over its DevTools protocol.

Only what the pages' tests need: open a page, run a script in it until it gives what is waited for, take a picture.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

DEADLINE_S = 60.0
"""A hang guard; nothing is decided by how long a thing takes."""
_NAMES = ("chromium", "chromium-browser", "google-chrome")


class Page:
    """One tab."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._number = 0
        self.complaints: list[str] = []
        """What the browser refused or found wrong: faults of scripts, what the policy forbade."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(self, url: str) -> None:
        """Go there; the page stands when this returns."""
        self._call("Page.navigate", url=url)
        self.until(f"document.readyState === 'complete' && location.href.startsWith({json.dumps(url)})")

    def size(self, width: int, height: int) -> None:
        """Of the window, in CSS pixels."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        told = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def until(self, script: str) -> Any:
        """The value of an expression, once it is one that counts as true."""
        deadline = time.monotonic() + DEADLINE_S
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, (script, self.run("document.body?.innerText"), self.complaints)
            time.sleep(0.02)
        return value

    def text(self, selector: str) -> str:
        """The text of the first element like this."""
        return str(self.run(f"document.querySelector({json.dumps(selector)}).textContent"))

    def press(self, selector: str) -> None:
        """Click on the first element like this."""
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def write(self, selector: str, text: str) -> None:
        """Put a text into a field, as if it was typed."""
        self.run(f"document.querySelector({json.dumps(selector)}).value = {json.dumps(text)}")

    def picture(self, path: Path) -> None:
        """What is seen, as PNG."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        self._connection.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(DEADLINE_S))
            if message.get("id") == self._number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        if message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(message["params"]["exceptionDetails"]))
        if message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
            self.complaints.append(message["params"]["entry"]["text"])


def find_browser() -> str:
    """Its program; skips the test where there is none."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("not run: no Chromium (apt-get install chromium)")
    return found


@contextmanager
def browser(scratch: Path) -> Iterator[Page]:
    """A tab of a browser of its own, which keeps nothing."""
    command = [find_browser(), "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
    command += ["--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--disable-sync"]
    command += ["--disable-component-update", "--disable-extensions", f"--user-data-dir={scratch}", "about:blank"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            port, path = _devtools(scratch, process)
            with connect(f"ws://127.0.0.1:{port}{path}", max_size=None) as connection:
                target = _call_browser(connection, "Target.createTarget", url="about:blank")["targetId"]
            with connect(f"ws://127.0.0.1:{port}/devtools/page/{target}", max_size=None) as connection:
                yield Page(connection)
        finally:
            process.kill()


def _devtools(scratch: Path, process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Where the browser listens, which it writes into a file."""
    file = scratch / "DevToolsActivePort"
    deadline = time.monotonic() + DEADLINE_S
    while not file.exists() or len(lines := file.read_text().splitlines()) < 2:
        assert process.poll() is None, "the browser ended"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return int(lines[0]), lines[1]


def _call_browser(connection: ClientConnection, method: str, **parameters: Any) -> dict[str, Any]:
    connection.send(json.dumps({"id": 1, "method": method, "params": parameters}))
    while True:
        message: dict[str, Any] = json.loads(connection.recv(DEADLINE_S))
        if message.get("id") == 1:
            result: dict[str, Any] = message["result"]
            return result
