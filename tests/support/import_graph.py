"""What modules of the product import, at their top, for type checkers only and inside functions; and its circles."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "starsd_edge": ROOT / "starsd_edge",
    "starsd_export": ROOT / "export" / "starsd_export",
    "starsd_server": ROOT / "server" / "starsd_server",
    "starsd_jetson": ROOT / "jetson" / "starsd_jetson",
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
    """Dotted name of the module in this file of one of `PACKAGES`."""
    parts = file.relative_to(PACKAGES[package]).with_suffix("").parts
    return ".".join((package, *(part for part in parts if part != "__init__")))


def modules() -> dict[str, Path]:
    """The files of all modules of the product, by name."""
    return {module_name(name, file): file for name, folder in PACKAGES.items() for file in folder.rglob("*.py")}


def imports_of(module: str, file: Path) -> Iterator[Import]:
    """All imports of a module."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    yield from imports_in(file.read_text(), module, package)


def imports_in(source: str, module: str, package: str) -> Iterator[Import]:
    """The imports of this source, wherever they stand in it, of a module in this package."""
    yield from _walk(ast.parse(source), module, package, at_import_time=True)


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


def import_graph(found: Iterable[Import], known: Iterable[str]) -> dict[str, set[str]]:
    """The modules among `known` that each of them imports, by its name."""
    graph: dict[str, set[str]] = {name: set() for name in known}
    for one in found:
        target = one.target
        while target and target not in graph:  # it may name something within a module
            target = target.rpartition(".")[0]
        if target and target != one.importer:
            graph[one.importer].add(target)
    return graph


def circle_in(graph: dict[str, set[str]]) -> list[str]:
    """Modules of which each imports the next and the last is the first again; none where there is no circle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


ALL_IMPORTS = [found for module, file in modules().items() for found in imports_of(module, file)]
