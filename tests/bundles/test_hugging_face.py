"""Checkpoints from the Hub, by huggingface_hub itself against a server on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from starsd_edge.bundles.catalogue import resolve_model
from starsd_edge.bundles.hugging_face import HubName, choose_files, parse_hub_name
from starsd_edge.errors import StarsdError, UsageError
from tests.support.fake_hub import FakeHub
from tests.support.hub_fixture import REPOSITORY, published, use_endpoint

pytestmark = pytest.mark.export

NAME = f"hf:{REPOSITORY}"


@pytest.fixture
def hub(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with published(tmp_path / "published", monkeypatch) as served:
        yield served


def refusal(name: str, kind: type[StarsdError] = UsageError) -> str:
    with pytest.raises(kind) as caught:
        resolve_model(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_an_export_reads_is_fetched_and_nothing_else(hub: FakeHub, cache: Path) -> None:
    place = resolve_model(NAME)
    wanted = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    assert hub.fetched == wanted
    assert {file.name for file in place.iterdir()} == wanted
    assert all((place / name).read_bytes() == hub.files[name] for name in wanted)
    assert place.name == hub.commit
    assert cache in place.parents


def test_the_second_time_needs_no_network_and_the_name_keeps_its_commit(hub: FakeHub) -> None:
    place = resolve_model(NAME)
    hub.requests.clear()
    hub.commit = "d" * 40
    assert resolve_model(NAME) == place
    assert hub.requests == []


def test_another_revision_is_a_pin_of_its_own(hub: FakeHub) -> None:
    first = resolve_model(NAME)
    hub.commit = "d" * 40
    assert resolve_model(f"{NAME}@v1").name == "d" * 40
    assert resolve_model(f"{NAME}@{'d' * 40}").name == "d" * 40
    assert resolve_model(NAME) == first


def test_a_file_that_was_lost_or_cut_is_fetched_again(hub: FakeHub) -> None:
    place = resolve_model(NAME)
    blob = (place / "model.safetensors").resolve()
    blob.unlink()
    assert (resolve_model(NAME) / "model.safetensors").read_bytes() == hub.files["model.safetensors"]


def test_a_token_comes_from_the_library_s_own_environment(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    resolve_model(NAME)
    assert hub.tokens == {"Bearer hf_secret"}


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (404, "RepoNotFound", "there is no hf:someone/tiny-qwen"),
        (403, "GatedRepo", "accept them on its page"),
        (404, "RevisionNotFound", "has no revision 'main'"),
    ],
)
def test_a_refusal_of_the_hub_is_said_in_one_line(hub: FakeHub, status: int, code: str, said: str) -> None:
    hub.refusal = (status, code)
    assert said in refusal(NAME)


def test_a_hub_in_trouble_is_said_in_one_line(hub: FakeHub) -> None:
    hub.refusal = (400, "")
    assert "refused hf:someone/tiny-qwen (HTTP 400)" in refusal(NAME, StarsdError)


def test_no_network_is_said_in_one_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_endpoint(monkeypatch, "http://127.0.0.1:9")
    assert "check the network" in refusal(NAME, StarsdError)


def test_a_repository_of_pickles_is_refused_before_anything_is_fetched(hub: FakeHub) -> None:
    del hub.files["model.safetensors"]
    assert "holds no safetensors" in refusal(NAME)
    assert hub.fetched == set()


def test_every_file_that_may_hold_a_chat_template_comes_with_the_weights() -> None:
    templates = {"chat_template.json", "chat_template.jinja", "additional_chat_templates/rag.jinja"}
    others = {"additional_chat_templates/a.py", "additional_chat_templates/deep/b.jinja", "c.jinja"}
    files = {"model.safetensors", *templates, *others}
    assert choose_files(HubName("a/b"), files) == sorted({"model.safetensors", *templates})


def test_shards_come_with_their_index() -> None:
    shards = {f"model-0000{part}-of-00002.safetensors" for part in (1, 2)}
    files = {*shards, "model.safetensors.index.json", "config.json", "onnx/model.onnx", "sub/config.json", "a.bin"}
    expected = sorted({*shards, "model.safetensors.index.json", "config.json"})
    assert choose_files(HubName("a/b"), files) == expected


@pytest.mark.parametrize(
    "text",
    ["hf:", "hf:name", "hf:a/b/c", "hf:a/b@", "hf:../b", "hf:a/..", "hf:a/b@../c", "hf:/b", "hf:a/b c", "hf:a/b\n"],
)
def test_a_name_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="hf:ORG/NAME or hf:ORG/NAME@REVISION"):
        parse_hub_name(text)


def test_names_and_revisions_are_read() -> None:
    assert parse_hub_name("hf:Qwen/Qwen3-8B") == HubName("Qwen/Qwen3-8B", "main")
    assert parse_hub_name("hf:a.b/c_d@refs/pr/1") == HubName("a.b/c_d", "refs/pr/1")
    assert parse_hub_name("smollm2-135m") is None
