"""Pictures of the pages, as docs/ shows them: a hub, a served target and another target with the default model, seen in
Chromium. Needs what `scripts/demo.sh` exports, and Chromium (`apt-get install chromium`).

    .venv/bin/python scripts/pictures.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.browser import Page, browser  # noqa: E402 (found by the line above)

HUB, SERVE = 8417, 8418
QUESTIONS = ("Name three planets.", "Write a Python function that adds two numbers, and say what it does.")
WIDTH, HEIGHT = 900, 640


@contextmanager
def running(*arguments: object) -> Iterator[None]:
    """A command of the program, from the line with which it is ready on."""
    command = [sys.executable, "-m", "starsd_edge.cli", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None or not process.stdout.readline():
                sys.exit(f"{arguments[0]} did not start: run scripts/demo.sh first")
            yield
        finally:
            process.terminate()


def ask(page: Page, question: str) -> None:
    """One message and its whole answer."""
    shown = page.run("document.querySelectorAll('.figures').length")
    page.write("#temperature", "0")
    page.write("#message", question)
    page.press("#send")
    page.until(f"document.querySelectorAll('.figures').length > {shown}")


def main() -> None:
    """Write docs/chat.png and docs/star.png."""
    chat = ("run-target", "smollm2-135m-fp32", "--hub", f"localhost:{HUB}", "--name", "orin-hall", "--chat")
    with ExitStack() as stack:
        stack.enter_context(running("run-draft", "smollm2-135m-eagle-int8", "--port", HUB))
        hub = ("--hub", f"localhost:{HUB}", "--name", "orin-desk")
        stack.enter_context(running("serve", "smollm2-135m-fp32", "--port", SERVE, *hub))
        command = [sys.executable, "-m", "starsd_edge.cli", *chat]
        other = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        )
        scratch = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        page = stack.enter_context(browser(Path(scratch)))
        page.size(WIDTH, HEIGHT)
        page.open(f"http://localhost:{SERVE}/")
        page.until("document.querySelector('#model').textContent.startsWith('smollm2')")
        for question in QUESTIONS:
            ask(page, question)
        page.picture(ROOT / "docs" / "chat.png")
        if other.stdin is not None:
            other.stdin.write(f"{QUESTIONS[1]}\n")
            other.stdin.flush()
        page.open(f"http://localhost:{HUB}/")
        page.until(
            "document.querySelectorAll('#targets td.on').length === 2 && "
            "[...document.querySelectorAll('#targets tr')].every(row => row.cells[2].textContent !== '-')"
        )
        page.picture(ROOT / "docs" / "star.png")
        other.terminate()


if __name__ == "__main__":
    main()
