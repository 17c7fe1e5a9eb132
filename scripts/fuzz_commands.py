"""Run commands with wrong files, options, environments and streams: each must end in an exit code and one clear line.

    python scripts/fuzz_commands.py BUNDLE... CHECKPOINT... --runs 10000 --seed 1

A run is a fork of one warmed-up interpreter. It fails where a traceback or the line about a fault of ours is shown,
where the exit code is none of 0, 1, 2 and 128+n, where a refusal says nothing, or where it is slow twice. Commands that
train or convert a model are rare: a run of them takes as long as hundreds of others. The small files that commands read
(prompts, keys, configuration, messages) are made here; give it tiny models.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import typer

from starsd_edge.cli import main

LONGEST_S = 20
"""A run that takes longer is slow, and has three times as long in a second try."""
SLOW = "took too long"
_WAITING = ("run-draft", "run-target", "serve", "monitor", "demo")
"""May run for ever, and are ended sooner."""
_WAITING_S = 6
# No address outside this machine, and no path of a file that a run as root could put something in the place of.
_WILD = (
    *("", "-1", "0", "1e999", "nan", "inf", "-inf", "9" * 400, "-0", "0x10", "1_000", "\u0663", "\udce9", "a\nb", "["),
    *(
        "[1",
        "..",
        "~nobody/x",
        "/proc/none/x",
        "/dev/null/x",
        "x" * 5000,
        "ws://",
        "ws://[",
        "=",
        ",",
        "--",
        "-",
        "hf:",
    ),
    *("ws://127.0.0.1:1", "ws://127.0.0.1:99999", "http://127.0.0.1:1", "true", "1,2,3", "4x2", "1:2:3"),
)
_TEXTS = (
    *(b"", b"\0", b"\xff\xfe", b"{}", b"[]", b"null", b"1e999", b"NaN", b"[" * 20_000, b'{"a":' * 20_000, b"9" * 5000),
    *(b'"\\ud800"', b"\xef\xbb\xbf{}", b"a = " + b"[" * 9000, b"[run-target]\nx = 1\n", b"[plan]\nrtt-ms = inf\n"),
    *(b"[plan]\nfrom = '\\u0000'\n", b"[check]\nthreads = 99999999999999999999\n", b"[doctor]\nport = -1\n"),
)
_COMMANDS = (
    *(("check",), ("plan",), ("run-target",), ("serve",), ("run-draft",), ("monitor",), ("doctor",), ("pull",), ()),
    *(("config", "show"), ("config", "path"), ("bench", "verify"), ("bench", "hub-step"), ("bench", "drafts")),
    *(("bench", "decode"), ("bench", "trace")),
)
_COSTLY = (("export",), ("train-draft",), ("bench", "star"), ("demo",))
_COSTLY_SHARE = 0.02
_SMALL: dict[tuple[str, ...], tuple[str, ...]] = {
    ("run-target",): ("--max-tokens", "4", "--prompt", "hi"),
    ("run-draft",): ("--port", "0"),
    ("serve",): ("--port", "0"),
    ("bench", "verify"): ("--passes", "3", "--rows", "2", "--committed", "8"),
    ("bench", "drafts"): ("--draft", "ngram", "--limit", "1", "--new-tokens", "8"),
    ("bench", "decode"): ("--repeats", "1", "--new-tokens", "2", "--prompt-tokens", "4"),
    ("bench", "trace"): ("--texts", "1", "--new-tokens", "32"),
    ("bench", "hub-step"): ("--repeats", "3", "--rows", "4", "--sessions", "1"),
}
"""Options with which a command does its whole work soon."""
_FILES = {
    "prompts.txt": "hello\nwhat is a star?\n\nab " * 3,
    "token.txt": "0123456789abcdef0123456789abcdef\n",
    "keys.toml": '[jetson]\ntoken-file = "token.txt"\nsessions = 4\n',
    "config.toml": '[plan]\nrtt-ms = 5.0\n[run-target]\nstop = ["x"]\nmax-tokens = 3\n[run-draft]\nport = 0\n',
    "messages.json": '[{"role": "system", "content": "be short"}, {"role": "user", "content": "hi"}]\n',
    "points.json": '{"points": [{"targets": 1, "sd_hub": 0.01}], "draft_times": {"1": 2.0}}\n',
}
"""What commands read beside models."""
_VARIABLES = ("HOME", "TERM", "COLUMNS", "LINES", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "STARSD_CACHE", "STARSD_CONFIG")
_VARIABLES += ("STARSD_PLAN_RTT_MS", "STARSD_RUN_TARGET_STOP", "STARSD_CHECK_BUNDLE", "STARSD_TYPO", "NO_COLOR", "TZ")


@dataclass
class Case:
    """One run.

    Attributes:
        streams: of 0, 1 and 2: "" as usual, else closed, full, broken or a directory.
    """

    arguments: list[str]
    environment: dict[str, str | None] = field(default_factory=dict)
    streams: tuple[str, str, str] = ("", "", "")


class Fuzz:
    """Makes cases and runs them.

    Args:
        sources: directories and files of a kind that commands read; copies of them are damaged.
        place: a directory of its own.
    """

    def __init__(self, sources: Sequence[Path], place: Path, seed: int) -> None:
        self._place = place
        self._sources = [*sources, *_small_files(place)]
        self._copies = 0
        self._draw = random.Random(seed)  # noqa: S311 (repeatable, no secret)
        command = typer.main.get_command(main.build_app())
        main.build_app = lambda: command  # type: ignore[assignment, return-value] (takes as long as many a command)
        self._options = _options_by_command(command)

    def case(self) -> Case:
        """The next one."""
        draw = self._draw
        shutil.rmtree(self._place / "inputs", ignore_errors=True)
        (self._place / "inputs").mkdir()
        words = draw.choice(_COSTLY if draw.random() < _COSTLY_SHARE else _COMMANDS)
        arguments = list(words)
        if draw.random() < 0.85 and words:
            arguments.append(str(self._damaged()))
        if draw.random() < 0.8:
            arguments += _SMALL.get(words, ())
        for _ in range(draw.choice((0, 0, 1, 1, 2, 3))):
            option = draw.choice(self._options.get(words) or ["--help"])
            arguments += [option, str(self._damaged()) if draw.random() < 0.3 else draw.choice(_WILD)]
        if draw.random() < 0.15:
            arguments = ["--config", str(self._damaged()), *arguments]
        chosen = draw.sample(_VARIABLES, draw.choice((0, 0, 1, 2)))
        environment = {name: draw.choice((None, *_WILD)) for name in chosen}
        streams = tuple(draw.choice(("", "", "", "closed", "full", "broken", "directory")) for _ in range(3))
        return Case(arguments, environment, streams if draw.random() < 0.3 else ("", "", ""))  # type: ignore[arg-type]

    def _damaged(self) -> Path:
        """A copy of a source with one file damaged, or a file of wild bytes."""
        draw = self._draw
        self._copies += 1
        source = draw.choice(self._sources)
        copy = self._place / "inputs" / f"{self._copies}{source.suffix}"
        if draw.random() < 0.15:
            copy.write_bytes(draw.choice(_TEXTS))
            return copy
        if source.is_dir():
            shutil.copytree(source, copy)
            files = sorted(file for file in copy.rglob("*") if file.is_file())
            small = [file for file in files if file.stat().st_size < 200_000]
            chosen = draw.choice(small if draw.random() < 0.8 else files)
        else:
            chosen = Path(shutil.copy(source, copy))
        if draw.random() < 0.75:
            self._damage(chosen)
        return copy

    def _damage(self, file: Path) -> None:
        draw, data = self._draw, bytearray(file.read_bytes())
        how = draw.randrange(7)
        at = draw.randrange(len(data) or 1)
        if how == 0:
            file.unlink()
        elif how == 1:
            file.write_bytes(draw.choice(_TEXTS))
        elif how == 2:
            file.write_bytes(data[:at])
        elif how == 3:
            file.write_bytes(self._other_value(bytes(data)))
        else:
            for _ in range(draw.choice((1, 1, 4, 64))):
                at = draw.randrange(min(len(data), 4096) or 1)
                data[at : at + draw.randrange(3)] = draw.randbytes(draw.randrange(3))
            file.write_bytes(data)

    def _other_value(self, data: bytes) -> bytes:
        """One value of JSON in the place of another: what is well-formed goes further than what is not."""
        pieces = data.split(b": ")
        if len(pieces) < 2:
            pieces = data.split(b":")
        number = self._draw.randrange(len(pieces))
        end = min((at for at in map(pieces[number].find, (b",", b"\n", b"}")) if at >= 0), default=0)
        wild = (b"null", b"-1", b"1e400", b"[]", b"{}", b'"x"', b"true", b"99999999999999999999", b"0", b'"\\u0000"')
        pieces[number] = self._draw.choice(wild) + pieces[number][end:]
        return b": ".join(pieces)

    def run(self, case: Case, longest_s: int = LONGEST_S) -> str:
        """What is wrong with how it ended; "" for nothing."""
        out, err = self._place / "out", self._place / "err"
        child = os.fork()
        if child == 0:
            _in_child(case, out, err, self._place, _WAITING_S if _waits(case) else longest_s)
        _, status = os.waitpid(child, 0)
        said = err.read_text(errors="replace")
        code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if code == 128 + signal.SIGALRM:
            return "" if _waits(case) else SLOW
        if code == 128 + signal.SIGSEGV or (code not in (0, 1, 2) and code < 128):
            return f"exit code {code}: {said[-300:]}"
        if "Traceback" in said or "report what it shows" in said or "Exception ignored" in said:
            return said
        if code in (1, 2) and case.streams == ("", "", "") and not said and not out.read_bytes():
            return f"exit code {code} and not a word"
        return ""


def _small_files(place: Path) -> list[Path]:
    folder = place / "small"
    folder.mkdir()
    for name, text in _FILES.items():
        (folder / name).write_text(text)
    return sorted(folder.iterdir())


def _in_child(case: Case, out: Path, err: Path, place: Path, longest_s: int) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(longest_s)
    for number, path in ((0, Path(os.devnull)), (1, out), (2, err)):
        mode = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        opened = os.open(path, mode, 0o600)
        os.dup2(opened, number)
        _spoil(number, case.streams[number])
    os.chdir(place)
    for name, value in case.environment.items():
        os.environ.pop(name, None)
        if value is not None and "\0" not in value:
            os.environ[name] = value
    sys.argv = ["starsd-edge", *case.arguments]
    code: object = 70
    try:
        main.main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        import traceback

        err.write_text(traceback.format_exc())
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _waits(case: Case) -> bool:
    return any(word in case.arguments for word in _WAITING)


def _spoil(number: int, how: str) -> None:
    if how == "closed":
        os.close(number)
    elif how == "full":
        os.dup2(os.open("/dev/full", os.O_RDWR), number)
    elif how == "directory" and number == 0:
        os.dup2(os.open("/", os.O_RDONLY), number)
    elif how == "broken":
        read, write = os.pipe()
        os.dup2(read if number == 0 else write, number)
        os.close(read)
        os.close(write)


def _options_by_command(group: object, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], list[str]]:
    found = {path: [opt for each in getattr(group, "params", ()) for opt in each.opts if opt.startswith("--")]}
    for name, command in getattr(group, "commands", {}).items():
        found |= _options_by_command(command, (*path, name))
    return found


def _warm_up() -> None:
    """Import what most commands import, so that a fork need not."""
    import importlib

    for name in ("numpy", "onnxruntime", "tokenizers", "starsd_edge.bundles.bundle", "starsd_jetson.target"):
        importlib.import_module(name)


def fuzz(runs: int, seed: int, sources: Sequence[Path], tell: Callable[[str], None], keep: Path | None = None) -> int:
    """Run so many and tell what failed; how many did.

    Args:
        keep: a directory to which the inputs of the first failure of each kind are copied.
    """
    with tempfile.TemporaryDirectory() as place:
        usual = {"HOME": place, "STARSD_CACHE": f"{place}/cache", "STARSD_CONFIG": os.devnull, "HF_HUB_OFFLINE": "1"}
        os.environ.update(usual)
        os.environ.pop("STARSD_TRACEBACK", None)
        _warm_up()
        machine = Fuzz(sources, Path(place), seed)
        failures: Counter[str] = Counter()
        for number in range(runs):
            case = machine.case()
            wrong = machine.run(case)
            if wrong == SLOW:
                wrong = machine.run(case, 3 * LONGEST_S)
            if not wrong:
                continue
            kind = wrong.strip().splitlines()[-1].replace(place, "")[:160]
            failures[kind] += 1
            if failures[kind] == 1:
                tell(f"run {number}, seed {seed}: {case}\n{wrong}")
                if keep is not None:
                    shutil.copytree(Path(place) / "inputs", keep / f"{seed}-{number}", symlinks=True)
        for kind, count in failures.most_common():
            tell(f"{count} times: {kind}")
        return failures.total()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", type=Path, help="bundles, checkpoints and files to damage copies of")
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="copy the inputs of each kind of failure to this directory")
    asked = parser.parse_args()
    tell = functools.partial(print, flush=True)
    sys.exit(1 if fuzz(asked.runs, asked.seed, asked.sources, tell, asked.keep) else 0)
