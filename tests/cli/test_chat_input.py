"""Lines to entries."""

from __future__ import annotations

import io

import pytest

from starsd_edge.cli.run_target.chat_input import Entry, Interrupts, ReadLine, line_reader, read_entry
from starsd_edge.cli.streams import TextStreams


def reader(text: str) -> ReadLine:
    return line_reader(io.StringIO(text), TextStreams(io.StringIO(), io.StringIO()), False, (), Interrupts())


def lines(*typed: str) -> ReadLine:
    return reader("".join(f"{line}\n" for line in typed))


@pytest.mark.parametrize(
    ("typed", "entries"),
    [
        (["hello"], [Entry("hello", False)]),
        (["a", "", "/help"], [Entry("a", False), Entry("", False), Entry("/help", False)]),
        (['"""a', "", 'b"""', "c"], [Entry("a\n\nb", True), Entry("c", False)]),
        (['"""', "/quit", "  b", '"""'], [Entry("/quit\n  b", True)]),
        (['  """one line"""  '], [Entry("one line", True)]),
        (['"""the end', "comes"], [Entry("the end\ncomes", True)]),
        (['say """hi"""'], [Entry('say """hi"""', False)]),
        (['""""""'], [Entry("", True)]),
    ],
)
def test_entries(typed: list[str], entries: list[Entry]) -> None:
    read_line = lines(*typed)
    assert [read_entry(read_line) for _ in entries] == entries
    with pytest.raises(EOFError):
        read_entry(read_line)


def test_prompts_say_whether_more_is_wanted() -> None:
    asked: list[str] = []
    read_line = lines('"""a', "b", 'c"""')

    def read(prompt: str) -> str:
        asked.append(prompt)
        return read_line(prompt)

    read_entry(read)
    assert asked == ["> ", "... ", "... "]


def test_a_last_line_without_an_end_counts() -> None:
    read_line = reader("a\nb")
    assert [read_entry(read_line).text for _ in range(2)] == ["a", "b"]
