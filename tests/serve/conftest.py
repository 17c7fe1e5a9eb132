"""Served targets that a file of tests shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from starsd_edge import DraftSettings, open_target
from starsd_jetson import target as target_module
from starsd_jetson.serve.server import ServeSettings
from tests.support.echo_model import CONTEXT, PLAIN, EchoEngine, write_echo_bundle
from tests.support.served import Served, served

ServeEcho = Callable[..., Served]


@pytest.fixture(scope="module")
def serve_echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeEcho]:
    """Serves a model that says what it is asked to say: its chat template, its hub, its settings, its engine,
    its context, and whether it drafts."""
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())

        def serve(
            template: str = PLAIN,
            hub: str | None = None,
            settings: ServeSettings | None = None,
            engine: EchoEngine | None = None,
            context: int = CONTEXT,
            speculation: bool = True,
        ) -> Served:
            folder: Path = tmp_path_factory.mktemp("served")
            patch.setattr(target_module, "open_engine", lambda *arguments, **named: engine or EchoEngine(context))
            drafts = DraftSettings(speculation, wait_s=None if hub is None else 5.0)
            bundle = write_echo_bundle(folder / "bundle", template, context)
            target = stack.enter_context(open_target(bundle, hub=hub, require_hub=hub is not None, drafts=drafts))
            return stack.enter_context(served(target, settings))

        yield serve


@pytest.fixture(scope="module")
def echo(serve_echo: ServeEcho) -> Served:
    """One without a hub."""
    return serve_echo()
