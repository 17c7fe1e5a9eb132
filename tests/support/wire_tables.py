"""The tables of docs/protocol.md, made from the message types and the golden frames.

`python -m tests.support.wire_tables` writes them into the page; a test holds the page to them.
"""

from __future__ import annotations

import ast
import inspect
import re
from itertools import pairwise
from pathlib import Path
from typing import get_args

import msgspec
from msgspec import inspect as types

from starsd_edge.protocol import codes, messages
from starsd_edge.protocol import codes as reasons
from starsd_edge.protocol.messages import HubMessage, TargetMessage, Tensor
from tests.support.golden_frames import FROM_HUB, FROM_TARGET, Golden

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"


def page_with_tables(page: str) -> str:
    """The page with every block between `<!-- NAME -->` and `<!-- end -->` written anew."""
    blocks = {
        "messages": _messages(),
        "golden frames": _golden_frames(),
        "error codes": _codes(),
        "limits": _limits(),
        "reasons": _reasons(),
    }
    for name, text in blocks.items():
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        page, found = block.subn(lambda match, text=text: f"{match[1]}\n{text}\n\n{match[2]}", page)
        if found != 1:
            raise ValueError(f"{PAGE.name} has {found} blocks {name!r}")
    return page


def _messages() -> str:
    kinds = dict.fromkeys([Tensor, *get_args(TargetMessage), *get_args(HubMessage)])
    return "\n\n".join(_message(kind) for kind in kinds)


def message_name(kind: type) -> str:
    """As the page calls it."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).upper()


def _message(kind: type[msgspec.Struct]) -> str:
    tag = kind.__struct_config__.tag
    name = message_name(kind)
    meanings = _docstrings(kind)
    first = 0 if tag is None else 1
    rows = ["| # | field | type | meaning |", "|---|---|---|---|"]
    if tag is not None:
        rows.append(f"| 0 | | int | {tag}, the kind |")
    info = types.type_info(kind)
    assert isinstance(info, types.StructType)
    for index, field in enumerate(info.fields, start=first):
        text = meanings[field.name].rstrip(".")
        if not field.required:
            text += f". Default {_value(field.default)}"
        rows.append(f"| {index} | `{field.name}` | {_type(field.type)} | {text} |")
    return f"#### {name}\n\n{inspect.cleandoc(kind.__doc__ or '')}\n\n" + "\n".join(rows)


def _docstrings(kind: type) -> dict[str, str]:
    """The string under each annotated name of a class."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    return _strings_below(body.body)


def _strings_below(body: list[ast.stmt]) -> dict[str, str]:
    strings = {}
    for statement, below in pairwise(body):
        if isinstance(statement, ast.AnnAssign):
            name = statement.target
        elif isinstance(statement, ast.Assign):
            name = statement.targets[0]
        else:
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(name, ast.Name):
            strings[name.id] = " ".join(str(below.value.value).split())
    return strings


def _type(kind: types.Type) -> str:
    if isinstance(kind, types.IntType):
        most = kind.le if kind.le is not None else None if kind.lt is None else kind.lt - 1
        return f"int {kind.ge} .. {_number(most)}"
    if isinstance(kind, types.FloatType):
        return f"float {kind.ge} .. {kind.le}"
    if isinstance(kind, types.StrType):
        return f"str, at most {kind.max_length} characters"
    if isinstance(kind, types.BytesType):
        return f"bin, {kind.max_length} bytes" if kind.min_length else f"bin, at most {kind.max_length} bytes"
    if isinstance(kind, types.MemoryViewType):
        return "bin"
    if isinstance(kind, types.BoolType):
        return "bool"
    if isinstance(kind, types.LiteralType):
        return " or ".join(f'"{value}"' for value in kind.values)
    if isinstance(kind, types.StructType):
        return kind.cls.__name__.upper()
    if isinstance(kind, types.UnionType):
        return " or ".join("nil" if isinstance(option, types.NoneType) else _type(option) for option in kind.types)
    assert isinstance(kind, types.ListType)
    least = kind.min_length or 0
    count = f"{least}" if least == kind.max_length else f"{least} to {kind.max_length}"
    return f"array of {count} x ({_type(kind.item_type)})"


def _number(value: int | float | None) -> str:
    """Powers of two as such."""
    assert isinstance(value, int)
    power = (value + 1).bit_length() - 1
    return f"2^{power} - 1" if power > 16 and value + 1 == 1 << power else str(value)


def _value(value: object) -> str:
    return {None: "nil", False: "false", "": "empty"}.get(value, str(value)) if value != 0 or value is False else "0"


def _golden_frames() -> str:
    return "\n\n".join(_golden_frame(golden) for golden in (*FROM_TARGET, *FROM_HUB))


def _golden_frame(golden: Golden) -> str:
    values = ", ".join(f"{name} = {_shown(getattr(golden.message, name))}" for name in golden.message.__struct_fields__)
    lines = "\n".join(golden.hex[start : start + 96] for start in range(0, len(golden.hex), 96))
    return f"{golden.name}: {values}\n\n```\n{lines}\n```"


def _shown(value: object) -> str:
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    if isinstance(value, Tensor):
        return "TENSOR(" + ", ".join(_shown(getattr(value, name)) for name in value.__struct_fields__) + ")"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, bool):
        return str(value).lower()
    return "nil" if value is None else str(value)


def _codes() -> str:
    meanings = _strings_below(ast.parse(inspect.getsource(codes)).body)
    rows = ["| code | meaning | offence | close code |", "|---|---|---|---|"]
    for name, meaning in meanings.items():
        code = getattr(codes, name)
        if isinstance(code, str):
            offence = "yes" if code in codes.OFFENCES else ""
            rows.append(f"| `{code}` | {meaning.rstrip('.')} | {offence} | {codes.CLOSE_CODES.get(code, '')} |")
    return "\n".join(rows)


def _reasons() -> str:
    rows = ["| `why_off` | meaning |", "|---|---|"]
    return "\n".join([*rows, *(f"| `{reason}` | {meaning} |" for reason, meaning in reasons.MEANINGS.items())])


def _limits() -> str:
    meanings = _strings_below(ast.parse(inspect.getsource(messages)).body)
    rows = ["| limit | value | meaning |", "|---|---|---|"]
    for name in ("MAX_FRAME_BYTES", "MAX_TENSOR_BYTES", "MAX_ROWS", "MAX_TREE_NODES", "MAX_PROBE_BYTES"):
        rows.append(f"| `{name}` | {getattr(messages, name)} | {meanings[name].rstrip('.')} |")
    return "\n".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page_with_tables(PAGE.read_text()))
