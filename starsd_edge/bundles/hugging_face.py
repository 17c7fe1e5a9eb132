"""Checkpoints from the Hugging Face Hub, as `hf:ORG/NAME` or `hf:ORG/NAME@REVISION`.

huggingface_hub fetches into a cache of ours, so what it keeps (partial files, locks, blobs by hash) is its own affair.
What is added here: only files that an export reads are fetched, and the first fetch pins the name to the commit it
found. From then on the name means that commit, without asking anyone, until the pin is removed or another revision is
named. A token comes from huggingface_hub's own environment or login and is never seen here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starsd_edge.bundles.cache import models_dir
from starsd_edge.bundles.integrity import require_free_space, write_whole
from starsd_edge.errors import StarsdError, UsageError

PREFIX = "hf:"
_NAME = re.compile(r"hf:([A-Za-z0-9][\w.-]*)/([A-Za-z0-9][\w.-]*)(?:@([A-Za-z0-9][\w./-]*))?", re.ASCII)
_MAIN = "main"
_WHOLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors", re.ASCII)
_BESIDE = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)
_MORE_TEMPLATES = re.compile(r"additional_chat_templates/[^/]+\.jinja")


@dataclass(frozen=True)
class HubName:
    """A model on the Hub.

    Attributes:
        repository: ORG/NAME.
        revision: branch, tag or commit.
    """

    repository: str
    revision: str = _MAIN

    def __str__(self) -> str:
        return f"{PREFIX}{self.repository}" + ("" if self.revision == _MAIN else f"@{self.revision}")

    @property
    def names_revision(self) -> bool:
        """Whether it means another one than the main branch's."""
        return self.revision != _MAIN

    @property
    def short(self) -> str:
        """NAME, without who published it."""
        return self.repository.partition("/")[2]


def parse_hub_name(text: str) -> HubName | None:
    """The model that a name beginning with `hf:` means, None for any other name.

    Raises:
        UsageError: it begins so and goes on otherwise.
    """
    if not text.startswith(PREFIX):
        return None
    found = _NAME.fullmatch(text)
    if found is None or ".." in text:
        raise UsageError(f"{text!r} is no name on the Hub: write hf:ORG/NAME or hf:ORG/NAME@REVISION")
    organisation, name, revision = found.groups()
    return HubName(f"{organisation}/{name}", revision or _MAIN)


def fetch_from_hub(name: HubName) -> Path:
    """The checkpoint's directory, named by its commit; fetched first unless it is there and whole.

    Raises:
        UsageError: no such model or revision, or none that can be exported.
        StarsdError: it cannot be fetched, or does not fit on the disk.
    """
    pinned = _read_pin(name)
    if pinned is not None:
        return pinned
    import huggingface_hub

    with _explained(name):
        info = huggingface_hub.HfApi().model_info(name.repository, revision=name.revision, files_metadata=True)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
        wanted = choose_files(name, sizes)
        require_free_space(models_dir(), sum(sizes[file] for file in wanted), f"fetching {name}")
        place = huggingface_hub.snapshot_download(
            name.repository, revision=info.sha, cache_dir=_hub_dir(), allow_patterns=wanted
        )
    _write_pin(name, Path(place), {file: sizes[file] for file in wanted})
    return Path(place)


def held_checkpoint(source: str) -> Path | None:
    """The directory of ORG/NAME@COMMIT, as a manifest names it, if it was fetched and is still here."""
    repository, _, commit = source.partition("@")
    if not commit or _NAME.fullmatch(f"{PREFIX}{source}") is None or ".." in source:
        return None
    place = _hub_dir() / f"models--{repository.replace('/', '--')}" / "snapshots" / commit
    return place if place.is_dir() else None


def choose_files(name: HubName, files: Iterable[str]) -> list[str]:
    """Of a repository's files those that an export reads: never pickles, nor a second form of the same weights.

    Raises:
        UsageError: there are no safetensors.
    """
    files = set(files)
    weights = [_WHOLE] if _WHOLE in files else sorted(file for file in files if _SHARD.fullmatch(file))
    if not weights:
        raise UsageError(
            f"{name} holds no safetensors, and pickled or quantised files are not fetched: "
            "name a repository that has model.safetensors"
        )
    if weights != [_WHOLE]:
        weights.append(_INDEX)
    templates = {file for file in files if _MORE_TEMPLATES.fullmatch(file)}
    return sorted({*weights, *_BESIDE} & files | templates)


def _hub_dir() -> Path:
    return models_dir() / "hub"


def _pin_file(name: HubName) -> Path:
    readable = re.sub(r"/", "--", f"{name.repository}@{name.revision}")
    return _hub_dir() / "pins" / f"{readable}.json"


def _read_pin(name: HubName) -> Path | None:
    """The directory that the name was pinned to, if every file that was fetched is there in its size."""
    try:
        pin = json.loads(_pin_file(name).read_text(encoding="utf-8"))
        place = _hub_dir() / pin["place"]
        whole = all((place / file).stat().st_size == size for file, size in pin["sizes"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return place if whole else None


def _write_pin(name: HubName, place: Path, sizes: Mapping[str, int]) -> None:
    pin = {"place": str(place.relative_to(_hub_dir().resolve())), "sizes": dict(sizes)}
    file = _pin_file(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(pin).encode())


@contextmanager
def _explained(name: HubName) -> Iterator[None]:
    """One line for everything that can go wrong on the way to the Hub."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError:
        raise UsageError(
            f"{name} is given to those only who accepted its terms: accept them on its page, then `hf auth login`"
        ) from None
    except errors.RepositoryNotFoundError:
        raise UsageError(
            f"there is no {PREFIX}{name.repository}, or it is not yours to see: check the name, or `hf auth login`"
        ) from None
    except errors.RevisionNotFoundError:
        raise UsageError(f"{PREFIX}{name.repository} has no revision {name.revision!r}: check it on its page") from None
    except errors.HfHubHTTPError as error:
        raise StarsdError(f"the Hub refused {name} ({_status(error)}): try again later") from None
    except (errors.HTTPError, OSError) as error:
        raise StarsdError(
            f"cannot fetch {name} ({type(error).__name__}): check the network and the space on the disk, then try again"
        ) from None


def _status(error: Any) -> str:
    return f"HTTP {getattr(error.response, 'status_code', 'error')}"
