"""Imports go one way, and heavy libraries wait until they are needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.import_graph import ALL_IMPORTS, PACKAGES, ROOT, Import, imports_in, modules

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


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def offenders(found: Iterator[Import]) -> list[str]:
    return sorted({f"{one.importer} imports {one.target}" for one in found})


def test_the_walk_sees_what_it_must_see() -> None:
    source = (
        "import torch\nfrom . import sibling\nfrom ..other import thing\n"
        "if TYPE_CHECKING:\n    import onnx\ndef f():\n    import gguf\n"
        "class C:\n    import cuda\ntry:\n    import tensorrt\nexcept ImportError:\n    pass\n"
    )
    found = {(i.target, i.at_import_time) for i in imports_in(source, "a.b.c", "a.b")}
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
