"""What the program says when it cannot go on.

Every error that a user can cause or mend is a `StarsdError`: one clear line that says what is wrong and what to do.
The command line prints that line and exits with `exit_code`; anything else is a fault of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches


class StarsdError(Exception):
    """A failure with one clear line for the user."""

    exit_code = 1


class UsageError(StarsdError):
    """The command line, a setting or an input cannot be used as given."""

    exit_code = 2


class BundleError(StarsdError):
    """A bundle is missing, incomplete, altered or made for something else."""


class EngineError(StarsdError):
    """An engine cannot be opened or cannot do what was asked of it (capacity, tree size)."""


class GpuMemoryError(EngineError):
    """A GPU has no memory left for what an engine needs."""


def install_extra(*extras: str) -> str:
    """How to install what belongs to extras, as a remedy. From a checkout: no package index has this program."""
    return f"pip install '.[{','.join(extras)}]' in the checkout of starsd-edge"


def require_one_of(what: str, option: str, value: object, known: Iterable[object]) -> None:
    """Check the value of an option that has a few.

    Args:
        what: what the option chooses.

    Raises:
        UsageError: it is none of those that are known.
    """
    kinds = list(known)
    if value not in kinds:
        raise UsageError(f"no such {what}: {option} is {' or '.join(map(str, kinds))}, not {value!r}")


def one_line(error: Exception) -> str:
    """What an error of a library says, without line breaks; its kind where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def did_you_mean(name: str, known: Iterable[str], written: Callable[[str], str] = str) -> str:
    """The end of a line about an unknown name: ": did you mean NAME?", or "" where none is like it.

    Args:
        written: how a name is shown.
    """
    near = " or ".join(written(each) for each in get_close_matches(name, list(known), n=2))
    return f": did you mean {near}?" if near else ""


EXTRA_OF = {
    "onnxruntime": "cpu",
    "prometheus_client": "server",
    "starlette": "serve",
    "uvicorn": "serve",
    "matplotlib": "bench",
    "simpy": "plan",
    "llguidance": "json",
    "zeroconf": "discover",
    "torch": "export",
    "transformers": "export",
    "onnx": "export",
    "onnxscript": "export",
    "onnx_ir": "export",
    "safetensors": "export",
    "gguf": "export",
    "huggingface_hub": "export",
}


def missing_extra(module: str | None) -> str | None:
    """One line that says how to install what `module` (dotted name, from a ModuleNotFoundError) belongs to, or None if
    it is no extra of ours.
    """
    library = (module or "").partition(".")[0]
    extra = EXTRA_OF.get(library)
    if extra is None:
        return None
    return f"this needs {library}, which is not installed: {install_extra(extra)}"


def remedy_of(error: ModuleNotFoundError) -> str:
    """The same for an error that was caught, which is raised again where the module is no extra of ours."""
    remedy = missing_extra(error.name)
    if remedy is None:
        raise error
    return remedy
