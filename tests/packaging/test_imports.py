"""Imports go one way, and heavy libraries wait until they are needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "starsd_edge": ROOT / "starsd_edge",
    "starsd_export": ROOT / "export" / "starsd_export",
    "starsd_server": ROOT / "server" / "starsd_server",
    "starsd_jetson": ROOT / "jetson" / "starsd_jetson",
}
PLACES = ("starsd_export", "starsd_server", "starsd_jetson")
HEAVY = ("torch", "transformers", "onnx", "onnxruntime", "onnxscript", "tensorrt", "cuda", "gguf", "safetensors")
# The engines and the exporter are what a heavy library is for; nothing else may import one at its top.
MAY_BE_HEAVY = (
    "starsd_edge.runtime.onnx_engine",
    "starsd_edge.runtime.torch_",
    "starsd_edge.heads.torch_",
    "starsd_export.",
)
ALLOWED_BELOW = {
    "starsd_edge.speculation": ("starsd_edge.speculation", "starsd_edge.errors"),
    "starsd_edge.protocol": ("starsd_edge.protocol", "starsd_edge.speculation", "starsd_edge.errors"),
}


@dataclass(frozen=True)
class Import:
    """One import statement's target.

    Attributes:
        importer: dotted name of the module it stands in.
        target: dotted name of what is imported.
        at_import_time: it runs when the module is imported (not in a function, not for type checkers only).
    """

    importer: str
    target: str
    at_import_time: bool


def module_name(package: str, file: Path) -> str:
    parts = file.relative_to(PACKAGES[package]).with_suffix("").parts
    return ".".join((package, *(part for part in parts if part != "__init__")))


def modules() -> dict[str, Path]:
    return {module_name(name, file): file for name, folder in PACKAGES.items() for file in folder.rglob("*.py")}


def imports_of(module: str, file: Path) -> Iterator[Import]:
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    yield from _walk(ast.parse(file.read_text()), module, package, at_import_time=True)


def _walk(node: ast.AST, module: str, package: str, at_import_time: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(module, alias.name, at_import_time)
        elif isinstance(child, ast.ImportFrom):
            base = _absolute(child, package)
            for alias in child.names:
                yield Import(module, f"{base}.{alias.name}", at_import_time)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _walk(child, module, package, at_import_time=False)
        else:
            deferred = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from _walk(child, module, package, at_import_time and not deferred)


def _absolute(statement: ast.ImportFrom, package: str) -> str:
    if statement.level == 0:
        return statement.module or ""
    parts = package.split(".")
    parts = parts[: len(parts) - statement.level + 1]
    return ".".join([*parts, *([statement.module] if statement.module else [])])


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


ALL_IMPORTS = [found for module, file in modules().items() for found in imports_of(module, file)]


def offenders(found: Iterator[Import]) -> list[str]:
    return sorted({f"{one.importer} imports {one.target}" for one in found})


def test_the_walk_sees_what_it_must_see() -> None:
    source = (
        "import torch\nfrom . import sibling\nfrom ..other import thing\n"
        "if TYPE_CHECKING:\n    import onnx\ndef f():\n    import gguf\n"
        "class C:\n    import cuda\ntry:\n    import tensorrt\nexcept ImportError:\n    pass\n"
    )
    found = {(i.target, i.at_import_time) for i in _walk(ast.parse(source), "a.b.c", "a.b", at_import_time=True)}
    assert found == {
        ("torch", True),
        ("a.b.sibling", True),
        ("a.other.thing", True),
        ("onnx", False),
        ("gguf", False),
        ("cuda", True),
        ("tensorrt", True),
    }
    assert len(ALL_IMPORTS) > 100


def test_the_core_knows_nothing_of_the_places() -> None:
    """But for the package itself, which shows others what they embed; see `starsd_edge.__getattr__`."""
    core = (i for i in ALL_IMPORTS if within(i.importer, "starsd_edge") and not within(i.importer, "starsd_edge.cli"))
    core = (i for i in core if i.importer != "starsd_edge" or i.at_import_time)
    assert offenders(i for i in core if any(within(i.target, p) for p in (*PLACES, "starsd_edge.cli"))) == []


def test_the_command_line_imports_the_places_only_when_a_command_runs() -> None:
    cli = (i for i in ALL_IMPORTS if within(i.importer, "starsd_edge.cli") and i.at_import_time)
    assert offenders(i for i in cli if any(within(i.target, place) for place in PLACES)) == []


@pytest.mark.parametrize("place", PLACES)
def test_a_place_knows_the_core_and_no_other_place(place: str) -> None:
    forbidden = [other for other in PLACES if other != place] + ["starsd_edge.cli"]
    own = (i for i in ALL_IMPORTS if within(i.importer, place))
    assert offenders(i for i in own if any(within(i.target, name) for name in forbidden)) == []


@pytest.mark.parametrize("layer", sorted(ALLOWED_BELOW))
def test_the_lower_layers_of_the_core_look_only_down(layer: str) -> None:
    own = (i for i in ALL_IMPORTS if within(i.importer, layer) and within(i.target, "starsd_edge"))
    assert offenders(i for i in own if not any(within(i.target, name) for name in ALLOWED_BELOW[layer])) == []


def test_heavy_libraries_are_imported_at_the_top_of_engines_and_exporters_only() -> None:
    early = (i for i in ALL_IMPORTS if i.at_import_time and not i.importer.startswith(MAY_BE_HEAVY))
    assert offenders(i for i in early if any(within(i.target, library) for library in HEAVY)) == []


BLOCK_AND_IMPORT = """
import importlib, sys
heavy = set(sys.argv[1].split(","))
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in heavy:
            raise ModuleNotFoundError(f"{name} is heavy", name=name)
sys.meta_path.insert(0, Block())
for name in sys.argv[2].split(","):
    importlib.import_module(name)
"""


def test_every_other_module_imports_where_no_heavy_library_is_installed() -> None:
    light = [module for module in modules() if not module.startswith(MAY_BE_HEAVY)]
    paths = [str(folder.parent) for folder in PACKAGES.values()]
    script = f"import sys; sys.path[:0] = {paths!r}\n{BLOCK_AND_IMPORT}"
    command = [sys.executable, "-c", script, ",".join(HEAVY), ",".join(light)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_help_imports_nothing_that_a_command_needs() -> None:
    script = (
        "import sys; from starsd_edge.cli.main import run; code = run(['--help']); "
        "heavy = {'numpy', 'msgspec', 'websockets', 'tokenizers', 'jinja2', 'asyncio', 'torch', 'onnxruntime', "
        "'starsd_server', 'starsd_jetson', 'starsd_export'} & set(sys.modules); "
        "sys.exit(f'imported {sorted(heavy)}' if heavy else code)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.returncode == 0, result.stderr


def test_no_place_in_memory_stands_for_an_object() -> None:
    """What `id` gives may be another object's once the first is gone: a key is the object itself, or what it says."""
    found = [
        f"{module}:{node.lineno}"
        for module, file in modules().items()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "id"
    ]
    assert found == []
