"""`starsd-edge run`: from a model to an answer. The model is the numpy engine; `export` writes the letter bundle."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from starsd_edge.bundles.bundle import load_bundle, write_manifest
from starsd_edge.bundles.cache import bundles_dir
from starsd_edge.bundles.manifest import GRAPH_REVISION
from starsd_edge.cli.export import make
from starsd_edge.cli.export.options import ExportCommandOptions
from starsd_jetson import target as target_module
from tests.support.command_line import CommandLine
from tests.support.letter_bundle import write_bundle
from tests.support.prefix_engine import UnhurriedEngine

MODEL = "smollm2-135m"
TEMPLATE = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}a"
FEW = ("--max-tokens", "6", "--ignore-eos")


@pytest.fixture(autouse=True)
def _engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_module, "open_engine", lambda *arguments, **named: UnhurriedEngine(1, max_context=128))


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch, cache: Path) -> list[ExportCommandOptions]:
    """What was exported; each time the letter bundle is written, as one of the default model's file."""
    asked: list[ExportCommandOptions] = []

    def export(options: ExportCommandOptions, say: Callable[[str], None]) -> None:
        asked.append(options)
        place = bundles_dir() / f"{options.model}-{options.weights or 'fp32'}"
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(place, ignore_errors=True)
        write_bundle(place, TEMPLATE)
        manifest = load_bundle(place).manifest
        graph = msgspec.structs.replace(manifest.graph, revision=GRAPH_REVISION)
        source = "SmolLM2-135M-Instruct.Q4_1.gguf"
        write_manifest(place, msgspec.structs.replace(manifest, source=source, graph=graph))
        say(str(place))

    monkeypatch.setattr(make, "make_bundle", export)
    return asked


def test_a_bundle_answers_at_once(cli: CommandLine, tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "bundle", TEMPLATE)
    ended = cli("run", bundle, "b", *FEW)
    same = cli("run-target", bundle, "--prompt", "b", *FEW)
    assert (ended.code, ended.out) == (0, same.out)
    assert len(ended.out.strip()) == 6


def test_a_model_is_exported_once_and_then_answers(cli: CommandLine, exported: list[ExportCommandOptions]) -> None:
    first = cli("run", MODEL, "abc", *FEW)
    second = cli("run", MODEL, "abc", *FEW)
    assert (first.code, second.code) == (0, 0), first
    assert first.out == second.out
    assert [each.model for each in exported] == [MODEL]
    assert str(bundles_dir() / f"{MODEL}-fp32") in first.err, "what was made is told beside the answer, not in it"
    assert cli("run", MODEL, "abc", "--weights", "int8", *FEW).code == 0
    assert [each.weights for each in exported] == [None, "int8"]


def test_words_are_one_prompt_and_standard_input_another(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = write_bundle(tmp_path / "bundle")
    words = cli("run", bundle, "abac", "abad", *FEW)
    assert words.out == cli("run-target", bundle, "--prompt", "abac abad", *FEW).out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfabacab\n")))
    piped = cli("run", bundle, *FEW)
    assert piped.out == cli("run", bundle, "abacab", *FEW).out
    for text, says in ((b"", "no prompt: write it after the model's name"), (b"\xff", "standard input is not UTF-8")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        ended = cli("run", bundle)
        assert (ended.code, ended.out) == (2, "")
        assert says in ended.err


def test_a_system_prompt_stands_in_the_template(cli: CommandLine, tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "bundle", TEMPLATE)
    told = cli("run", bundle, "b", "--system", "c", *FEW)
    assert told.out == cli("run-target", bundle, "--raw", "--prompt", "scuba", *FEW).out
    plain = write_bundle(tmp_path / "plain")
    refused = cli("run", plain, "b", "--system", "c")
    assert refused.code == 1
    assert "has no chat template: leave the system prompt out" in refused.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("smolm2-135m", "b"), "no model or bundle is named 'smolm2-135m': did you mean smollm2-135m?"),
        (("nothing like it", "b"), "known are smollm2-135m"),
        ((MODEL, "b", "--temperature", "-1"), "temperature"),
        ((MODEL, "b", "--device", "tpu"), "tpu"),
        ((MODEL, "b", "--system", "x", "--raw"), "leave out --raw"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_made(
    cli: CommandLine, exported: list[ExportCommandOptions], arguments: tuple[str, ...], says: str
) -> None:
    ended = cli("run", *arguments)
    assert (ended.code, ended.out, exported) == (2, "", [])
    assert says in ended.err


def test_a_bundle_has_its_weights(cli: CommandLine, tmp_path: Path) -> None:
    ended = cli("run", write_bundle(tmp_path / "bundle"), "b", "--weights", "int8")
    assert ended.code == 2
    assert "leave --weights out" in ended.err


def test_without_the_exporters_libraries_one_line_says_which_extra_brings_them(
    cli: CommandLine, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(options: ExportCommandOptions, say: Callable[[str], None]) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(make, "make_bundle", missing)
    ended = cli("run", MODEL, "b")
    assert ended.code == 1
    assert "smollm2-135m has to be exported first, which needs torch: pip install '.[export,cpu]'" in ended.err


def test_a_bundle_of_another_model_with_the_same_short_name_is_made_again(
    cli: CommandLine, exported: list[ExportCommandOptions]
) -> None:
    assert cli("run", MODEL, "abc", *FEW).code == 0
    place = bundles_dir() / f"{MODEL}-fp32"
    manifest = load_bundle(place).manifest
    write_manifest(place, msgspec.structs.replace(manifest, source="someone/else@1234"))
    ended = cli("run", MODEL, "abc", *FEW)
    assert (ended.code, len(exported)) == (0, 2)
    assert f"making {MODEL}-fp32 again: the one that is there is of another model (someone/else@1234)" in ended.err
