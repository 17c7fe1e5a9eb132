"""No module of the product imports itself by a detour: not at its top, not for type checkers, not inside a function."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.support.import_graph import ALL_IMPORTS, Import, circle_in, import_graph, imports_in, modules

FACADE = "starsd_edge"
"""It shows the parts that programs embed, and loads each when it is first asked for. That it imports them for type
checkers is the one thing that the check leaves out.
"""


def checked(found: list[Import]) -> list[Import]:
    return [one for one in found if one.at_import_time or one.importer != FACADE]


def room(module: str) -> str:
    """A folder of the core, a module that lies beside them, or a whole place."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == FACADE else parts[0]


def test_no_module_imports_itself_by_a_detour() -> None:
    assert circle_in(import_graph(checked(ALL_IMPORTS), modules())) == []


def test_no_folder_imports_itself_by_a_detour() -> None:
    between = [Import(room(one.importer), one.target, one.at_import_time) for one in checked(ALL_IMPORTS)]
    assert circle_in(import_graph(between, {room(module) for module in modules()})) == []


@pytest.mark.parametrize(
    "back",
    [
        "from starsd_edge.protocol.hub_connection import HubConnection",
        "if TYPE_CHECKING:\n    from starsd_edge.protocol.hub_connection import HubConnection",
        "def later():\n    import starsd_edge.protocol.hub_connection",
        "from . import hub_connection",
        "from .hub_side import HubProtocol",
    ],
    ids=["top", "type checkers", "function", "relative", "detour"],
)
def test_a_planted_circle_is_found(back: str) -> None:
    """One import back from what the hub's state machine is built on closes a circle, whatever form it has."""
    importer = "starsd_edge.protocol.hub_actions"
    planted = [*ALL_IMPORTS, *imports_in(back, importer, "starsd_edge.protocol")]
    circle = circle_in(import_graph(checked(planted), modules()))
    assert importer in circle
    assert circle[0] == circle[-1]
    graph = import_graph(checked(planted), modules())
    assert all(target in graph[module] for module, target in pairwise(circle))


def test_a_planted_circle_of_folders_is_found() -> None:
    """Of the modules none imports itself: the two folders import each other by different ones."""
    planted = [*ALL_IMPORTS, Import("starsd_edge.errors", "starsd_edge.protocol.codes", at_import_time=False)]
    assert circle_in(import_graph(checked(planted), modules())) == []
    between = [Import(room(one.importer), one.target, one.at_import_time) for one in checked(planted)]
    circle = circle_in(import_graph(between, {room(module) for module in modules()}))
    assert {"starsd_edge.errors", "starsd_edge.protocol"} <= set(circle)
