"""The log of a command that runs for long: lines on standard error, as text or as one JSON object each.

Loggers may name models, targets, addresses and counts. Never prompts, answers, token ids, tags or secrets, at any
level; libraries that would are kept silent.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum
from io import TextIOBase
from typing import Annotated, ClassVar, TextIO

import typer

from starsd_edge.errors import StarsdError

log = logging.getLogger(__name__)

_TEXT = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%H:%M:%S")
_LIBRARY = "websockets"
"""It writes out frames at its debug level, and with them tags and tokens; at its error level, a traceback for every
stranger that cannot shake hands. What matters of its errors is in our own log."""


class LogLevel(str, Enum):
    """How much goes into the log."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(str, Enum):
    """How it is written."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """The options of every command with a log."""

    __panel__: ClassVar[str] = "Log"

    log_level: Annotated[LogLevel, typer.Option(help="How much goes to standard error.")] = LogLevel.INFO
    log_format: Annotated[LogFormat, typer.Option(help="Lines of text, or one JSON object a line.")] = LogFormat.TEXT

    @property
    def is_json(self) -> bool:
        """Whether standard error is for programs to read."""
        return self.log_format is LogFormat.JSON


class JsonLines(logging.Formatter):
    """A record as a JSON object: time (UTC), level, logger, message, and the traceback as exception if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        time = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        entry = {
            "time": time,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


@contextmanager
def logging_to(stream: TextIO | TextIOBase, options: LogOptions) -> Iterator[None]:
    """Write the log for as long as the block lasts. In JSON, an error that ends the command is its last line."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if options.is_json else _TEXT)
    handler.setLevel(options.log_level.value.upper())
    root = logging.getLogger()
    level_before = root.level
    root.addHandler(handler)
    root.setLevel(options.log_level.value.upper())
    logging.getLogger(_LIBRARY).setLevel(logging.CRITICAL)
    try:
        yield
    except StarsdError as error:
        if not options.is_json:
            raise
        log.error("%s", error)  # noqa: TRY400 (what a user can mend is a line, not a traceback)
        raise typer.Exit(error.exit_code) from None
    finally:
        root.removeHandler(handler)
        root.setLevel(level_before)
