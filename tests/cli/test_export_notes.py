"""`starsd-edge export` says what a user who knows the checkpoint would not expect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from starsd_edge.bundles.bundle import load_bundle
from tests.support.command_line import CommandLine

if TYPE_CHECKING:
    from tests.support.tiny_eagle3 import TinyEagle3

pytestmark = pytest.mark.export


def test_a_shorter_context_is_said_once_and_kept_in_the_manifest(cli: CommandLine, cache: Path, tmp_path: Path) -> None:
    from tests.support.tiny_families import write_family

    checkpoint = write_family(tmp_path / "windowed", model_type="mistral", sliding_window=512)
    ended = cli("export", checkpoint)
    assert ended.code == 0
    notes = [line for line in ended.err.splitlines() if line.startswith("note: ")]
    assert len(notes) == 1
    assert "the context ends at 512 tokens and not at 1024" in notes[0]
    manifest = load_bundle(cache / "bundles" / "windowed-fp32").manifest
    assert manifest.model.max_context == 512
    assert notes == [f"note: {note}" for note in manifest.notes]


def test_the_chosen_template_and_ends_are_in_the_bundle_and_a_user_is_told_of_them(
    cli: CommandLine, cache: Path, tmp_path: Path
) -> None:
    from tests.support.tiny_families import write_family

    checkpoint = write_family(tmp_path / "tiny", model_type="llama", num_hidden_layers=1)
    template = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    named = [{"name": "default", "template": "plain"}, {"name": "chat", "template": template}]
    contents = {"eos_token": "</s>", "pad_token": "<|im_end|>", "chat_template": named}
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(contents))
    ended = cli("export", checkpoint, "--chat-template", "chat")
    assert ended.code == 0, ended.err
    assert "note: its chat template chat is used and not default: --chat-template takes another" in ended.err
    assert (
        "note: its chat template ends turns with <|im_end|>, which ends no answer: --also-end '<|im_end|>'" in ended.err
    )
    ended = cli("export", checkpoint, "--chat-template", "chat", "--also-end", "<|im_end|>")
    assert ended.code == 0, ended.err
    assert "--also-end" not in ended.err
    place = cache / "bundles" / "tiny-fp32"
    text = load_bundle(place).manifest.text
    assert (place / "chat_template.jinja").read_text() == template
    assert 3 in text.eos_ids
    assert text.special_tokens is not None
    assert (text.special_tokens["eos_token"], text.special_tokens["pad_token"]) == ("</s>", "<|im_end|>")
    ended = cli("export", checkpoint, "--also-end", "<|no|>")
    assert ended.code == 2
    assert ended.err.splitlines()[-1].startswith("error: '<|no|>' is no token of this model")
    line = cli.refused("export", checkpoint, "--also-end", "</s>", "--draft-head", "shipped")
    assert "are for the target's bundle: leave out --draft-head" in line


def test_what_stored_weights_do_to_the_perplexity_is_printed(cli: CommandLine, cache: Path, tmp_path: Path) -> None:
    from tests.support.tiny_families import write_family

    checkpoint = write_family(tmp_path / "tiny", model_type="llama", num_hidden_layers=1)
    ended = cli("export", checkpoint, "--runtime", "tensorrt", "--weights", "int8")
    assert ended.code == 0, ended.err
    (line,) = [line for line in ended.out.splitlines() if line.startswith("perplexity ")]
    change = load_bundle(cache / "bundles" / "tiny-tensorrt-int8").manifest.perplexity["held-out text"]
    assert line == f"perplexity on held-out text {change}"
    assert " -> " in line


@pytest.mark.usefixtures("cache")
def test_what_is_for_int4_alone_or_tensorrt_alone_is_refused_elsewhere(cli: CommandLine, tmp_path: Path) -> None:
    line = cli.refused("export", tmp_path, "--runtime", "tensorrt", "--weights", "int8", "--calibration", "own-text")
    assert "--calibration own-text is for --weights int4: leave it away" in line
    line = cli.refused("export", tmp_path, "--weights", "int8", "--keep-int8", "none", "--calibration", "none")
    assert "--keep-int8 and --calibration are for --runtime tensorrt" in line
    line = cli.refused("export", tmp_path, "--runtime", "tensorrt", "--weights", "int4", "--keep-int8", "v,norm")
    assert "--keep-int8 is none, or some of q,k,v,o,gate,up,down, not 'norm'" in line


def test_the_bundle_of_an_eagle_3_head_says_what_it_reads_and_how_its_targets_are_made(
    cli: CommandLine, cache: Path, tiny_eagle3: TinyEagle3
) -> None:
    ended = cli("export", tiny_eagle3.checkpoint, "--draft-head", tiny_eagle3.head)
    assert ended.code == 0, ended.err
    assert (cache / "bundles" / "tiny-eagle3-int8").is_dir()
    assert [line for line in ended.err.splitlines() if line.startswith("note: ")] == [
        "note: the head in tiny-eagle3 reads the inputs of layers 1, 2, 3 (as stated)",
        "note: its targets run the bundle of `starsd-edge export tiny --features-for tiny-eagle3`",
    ]


@pytest.mark.usefixtures("cache")
def test_one_export_makes_one_bundle(cli: CommandLine, tiny_eagle3: TinyEagle3) -> None:
    head = tiny_eagle3.head
    line = cli.refused("export", tiny_eagle3.checkpoint, "--draft-head", head, "--features-for", head)
    assert "run export once with each" in line
    ended = cli("export", tiny_eagle3.checkpoint, "--features-for", "missing")
    assert ended.code != 0
    assert ended.err.splitlines()[-1].startswith("error: no head at missing: ")
