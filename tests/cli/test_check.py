"""`starsd-edge check`: bundles of every kind pass, and every planted fault is named in a plain sentence."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("onnx", reason="needs onnx")

from starsd_edge.bundles.bundle import Bundle, load_bundle
from starsd_edge.bundles.engine_manifest import EngineHost, EngineLimits, platform_name
from starsd_edge.bundles.fingerprints import tokenizer_fingerprint
from starsd_edge.errors import EngineError
from starsd_edge.runtime.loading import open_engine
from starsd_edge.runtime.tensorrt import opening
from starsd_export.pipeline import ExportOptions, export_bundle
from starsd_export.tensorrt_graph import TensorrtOptions
from tests.support.bundle_store import key_of, tiny_copy
from tests.support.command_line import CommandLine, Ended
from tests.support.planted_faults import (
    PLAN,
    change_tokenizer,
    copied,
    load_bundle_loosely,
    perturb_weight,
    sign,
    swap_layers,
    write_engine,
)
from tests.support.small_head import small_draft_bundle
from tests.support.tiny_llama import write_safetensors

CASES = (
    "prefill",
    "chunked prefill",
    "long chunk",
    "far positions",
    "one token on nothing",
    "one token",
    "chain",
    "tree",
    "after a branch",
)
CPU_KINDS = ("fp32", "fp32-kv32", "int8")
TENSORRT_KINDS = ("fp16", "fp16-inplace", "int4-inplace")
INT4_INPLACE = ExportOptions("int4", tensorrt=TensorrtOptions(block=32, kv_strategy="inplace", context=192))
ORIN = EngineHost("tensorrt", "10.3.0.30", "sm87", platform_name())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_safetensors(tmp_path_factory.mktemp("source") / "checkpoint")


@pytest.fixture(scope="module")
def bundles(
    tiny_bundles: dict[str, Bundle],
    tiny_tensorrt: dict[str, Bundle],
    checkpoint: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Bundle]:
    int4 = tiny_copy(
        tmp_path_factory.mktemp("int4") / "int4-inplace",
        f"tiny-int4-inplace-{key_of(INT4_INPLACE)}",
        load_bundle,
        lambda made: export_bundle(checkpoint, made, INT4_INPLACE),
    )
    half = {"fp16": tiny_tensorrt["append"], "fp16-inplace": tiny_tensorrt["inplace"]}
    return tiny_bundles | half | {"int4-inplace": int4}


@pytest.fixture
def fp32(bundles: dict[str, Bundle], tmp_path: Path) -> Path:
    """A copy to plant faults in."""
    return copied(bundles["fp32"], tmp_path / "fp32")


class Device:
    """A machine with a GPU, where an engine is whatever the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host = ORIN
        self.engine: Any = None
        self.opened = 0
        monkeypatch.setattr(opening, "host_of", lambda engine: self.host)
        monkeypatch.setattr(opening, "open_at", self._open)

    def _open(self, *_: object) -> Any:
        self.opened += 1
        return self.engine


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


def words(ended: Ended) -> str:
    """What is shown, as one line."""
    return " ".join(ended.out.split())


def found(ended: Ended, part: str) -> dict[str, dict[str, Any]]:
    """The checks of a part, from --json, by name."""
    return {check["name"]: check for check in json.loads(ended.out)["checks"] if check["part"] == part}


@pytest.mark.parametrize("kind", [*CPU_KINDS, *TENSORRT_KINDS])
def test_a_bundle_of_every_kind_passes(
    cli: CommandLine, cache: Path, bundles: dict[str, Bundle], checkpoint: Path, kind: str
) -> None:
    ended = cli("check", bundles[kind].path, "--checkpoint", checkpoint, "--threads", 1, "--json")
    assert ended.code == 0, ended
    assert ended.err == ""
    for part in ("recorded", "checkpoint"):
        checks = found(ended, part)
        assert {*CASES} <= {*checks}
        assert {check["status"] for check in checks.values()} == {"ok"}
        assert all(check["largest"] <= check["allowed"] for check in checks.values() if check["largest"] is not None)
    recorded = found(ended, "recorded")
    assert recorded["greedy text"]["finding"] == "16 tokens, the same ids"
    assert ("bits of a chain" in recorded) == (kind in CPU_KINDS)
    assert max(recorded[case]["largest"] for case in CASES) == 0, "this machine made it"


def test_people_get_a_line_for_each_check_within_80_columns(
    cli: CommandLine, cache: Path, bundles: dict[str, Bundle]
) -> None:
    ended = cli("check", bundles["fp32"].path, "--threads", 1)
    assert ended.code == 0, ended
    assert max(map(len, ended.out.splitlines())) <= 80
    assert "\x1b" not in ended.out
    lines = [line.split() for line in ended.out.splitlines()]
    assert ["ok", "tree", "the", "same", "numbers,", "5.0e-03", "allowed"] in lines
    assert "not checked passes it is not in the cache -> name it: --checkpoint MODEL" in words(ended)
    assert words(ended).endswith("14 ok, 1 not checked here")
    assert all(line.startswith("check: ") for line in ended.err.splitlines())


def test_a_missing_file_is_named_and_the_graph_is_left_alone(cli: CommandLine, cache: Path, fp32: Path) -> None:
    (fp32 / "model.onnx.data").unlink()
    ended = cli("check", fp32)
    assert ended.code == 1
    assert "differs model.onnx.data" in words(ended)
    assert "is incomplete: model.onnx.data is missing; make the bundle again" in words(ended)
    assert "not checked graph model.onnx.data is not the file that was exported, so it is not loaded" in words(ended)


def test_all_altered_files_are_named(cli: CommandLine, cache: Path, fp32: Path) -> None:
    for name in ("model.onnx", "golden.npz"):
        (fp32 / name).write_bytes((fp32 / name).read_bytes()[:-1])
    ended = cli("check", fp32, "--json")
    files = found(ended, "files")
    assert [name for name, check in files.items() if check["status"] == "differs"] == ["golden.npz", "model.onnx"]
    assert "altered or truncated" in files["golden.npz"]["finding"]
    assert json.loads(ended.out)["exit_code"] == ended.code == 1


@pytest.mark.model
def test_the_default_model_passes_and_keeps_little_of_itself(
    cli: CommandLine, cache: Path, bundle_fp32: Bundle, model_file: Path
) -> None:
    assert (bundle_fp32.path / "golden.npz").stat().st_size < 300_000
    ended = cli("check", bundle_fp32.path, "--checkpoint", model_file, "--threads", 2, "--json")
    assert ended.code == 0, ended
    assert {check["status"] for check in json.loads(ended.out)["checks"]} == {"ok"}
    assert found(ended, "checkpoint")["weights"]["finding"] == "all numbers of 272 tensors are those of the checkpoint"


def test_a_file_of_several_names_as_backups_make_them_is_read(
    cli: CommandLine, cache: Path, bundles: dict[str, Bundle], checkpoint: Path, tmp_path: Path
) -> None:
    path = copied(bundles["fp32"], tmp_path / "fp32")
    os.link(path / "model.onnx.data", tmp_path / "backup")
    ended = cli("check", path, "--checkpoint", checkpoint, "--threads", 1, "--json")
    assert ended.code == 0, ended
    assert found(ended, "checkpoint")["weights"]["status"] == "ok"


@pytest.mark.parametrize("kind", ["fp32", "fp16", "int4-inplace"])
def test_a_perturbed_weight_is_caught_though_the_digests_are_right(
    cli: CommandLine, cache: Path, bundles: dict[str, Bundle], checkpoint: Path, tmp_path: Path, kind: str
) -> None:
    path = copied(bundles[kind], tmp_path / kind)
    perturb_weight(path)
    ended = cli("check", path, "--checkpoint", checkpoint, "--threads", 1, "--json")
    assert ended.code == 1, ended
    assert found(ended, "files")["files"]["status"] == "ok"
    # From the checkpoint, weights of four bits are further away than one of them changes.
    for part in ("recorded",) if kind == "int4-inplace" else ("recorded", "checkpoint"):
        wrong = found(ended, part)["prefill"]
        assert wrong["status"] == "differs", part
        assert wrong["largest"] > wrong["allowed"]
        assert wrong["remedy"] == "export the bundle again with `starsd-edge export`"
    if kind != "int4-inplace":
        said = found(ended, "checkpoint")["weights"]["finding"]
        assert said == "1 of 4,096 numbers of model.layers.0.self_attn.q_proj.weight are not those of the checkpoint"
    said = found(ended, "recorded")["prefill"]["finding"]
    assert said.startswith("layer "), said
    assert " differ by " in said


@pytest.mark.parametrize("kind", ["fp32", "int4-inplace"])
def test_layers_that_swapped_their_caches_are_named(
    cli: CommandLine, cache: Path, bundles: dict[str, Bundle], tmp_path: Path, kind: str
) -> None:
    path = copied(bundles[kind], tmp_path / kind)
    swap_layers(path)
    ended = cli("check", path, "--threads", 1)
    assert ended.code == 1
    assert "differs prefill layer 0 keys are those of layer 1: the layers are not in their order" in words(ended)
    assert "ok greedy text" in words(ended), "it is at one with itself"
    assert ended.out.count("-> export the bundle again") == 1, "what mends all stands once"


def test_layers_that_read_each_others_past_are_named(cli: CommandLine, cache: Path, fp32: Path) -> None:
    swap_layers(fp32, ("past",))
    ended = cli("check", fp32, "--threads", 1, "--json")
    assert ended.code == 1
    checks = found(ended, "recorded")
    assert checks["prefill"]["status"] == "ok", "nothing is past yet"
    assert checks["one token"]["finding"].startswith("layer 1 keys differ by "), "layer 0 has read what is not its own"


def test_another_tokenizer_is_caught_by_its_fingerprint(cli: CommandLine, cache: Path, fp32: Path) -> None:
    change_tokenizer(fp32, lambda content: content["model"]["merges"].pop())
    ended = cli("check", fp32)
    assert ended.code == 1
    assert "tokenizer.json is another tokenizer than the one of the model (its fingerprint differs)" in words(ended)


def test_another_tokenizer_with_its_own_fingerprint_is_caught_by_its_tokens(
    cli: CommandLine, cache: Path, fp32: Path
) -> None:
    change_tokenizer(fp32, lambda content: content["model"]["merges"].clear())
    prints = load_bundle_loosely(fp32).manifest.fingerprints
    forged = tokenizer_fingerprint(json.loads((fp32 / "tokenizer.json").read_text()))
    sign(fp32, fingerprints=msgspec.structs.replace(prints, tokenizer_fp=forged))
    ended = cli("check", fp32)
    assert ended.code == 1
    assert "makes other tokens of 'The hub drafts a few wor' than at export" in words(ended)


def test_a_damaged_manifest_is_a_finding(cli: CommandLine, cache: Path, fp32: Path) -> None:
    (fp32 / "manifest.json").write_text("{}")
    ended = cli("check", fp32)
    assert ended.code == 1
    assert "differs manifest" in words(ended)
    assert "is damaged" in words(ended)


def test_what_is_no_bundle_is_one_line(cli: CommandLine, cache: Path) -> None:
    assert "no bundle named 'nothing'" in cli.refused("check", "nothing")


def test_a_bundle_without_a_recording_is_compared_with_the_checkpoint(
    cli: CommandLine, cache: Path, fp32: Path, checkpoint: Path
) -> None:
    (fp32 / "golden.npz").unlink()
    sign(fp32)
    ended = cli("check", fp32, "--checkpoint", checkpoint, "--threads", 1)
    assert ended.code == 0
    assert "not checked passes the bundle holds no recording" in words(ended)
    assert "ok after a branch within" in words(ended)


def test_a_machine_without_torch_compares_with_the_recording(
    cli: CommandLine, cache: Path, fp32: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else there(name, *rest)
    )
    ended = cli("check", fp32, "--threads", 1)
    assert ended.code == 0
    assert "not checked passes this needs torch, which is not installed: pip install '.[export]'" in words(ended)
    assert "ok greedy text 16 tokens, the same ids" in words(ended)


def test_another_checkpoint_is_refused_by_name(cli: CommandLine, cache: Path, fp32: Path, tmp_path: Path) -> None:
    other = write_safetensors(tmp_path / "other", seed=1)
    ended = cli("check", fp32, "--checkpoint", other, "--threads", 1)
    assert (ended.code, ended.out) == (2, "")
    assert f"{other} is not the checkpoint that checkpoint was made from" in ended.err


def test_engines_that_are_not_there_are_said_to_be_not_there(
    cli: CommandLine, cache: Path, bundles: dict[str, Bundle]
) -> None:
    ended = cli("check", bundles["fp16"].path, "--threads", 1)
    assert ended.code == 0
    assert "not checked engines there is none on this machine" in words(ended)
    assert "engine" not in words(cli("check", bundles["fp32"].path, "--threads", 1))
    line = cli.refused("check", bundles["fp32"].path, "--engine", cache, "--json")
    assert "has a graph for ONNX Runtime" in line
    assert "leave --engine" in line


def test_an_engine_of_a_machine_without_a_gpu_is_checked_as_far_as_that_goes(
    cli: CommandLine, cache: Path, bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_driver(engine: object) -> EngineHost:
        raise EngineError("there is no NVIDIA driver on this machine")

    monkeypatch.setattr(opening, "host_of", no_driver)
    write_engine(cache / "engines" / "kept", bundles["int4-inplace"])
    ended = cli("check", bundles["int4-inplace"].path, "--threads", 1, "--json")
    assert ended.code == 0, ended
    checks = found(ended, "engine")
    assert {name: check["status"] for name, check in checks.items()} == {
        "manifest": "ok",
        "graph": "ok",
        "plan": "ok",
        "machine": "not checked here",
    }
    assert checks["machine"]["finding"] == "there is no NVIDIA driver on this machine"
    assert checks["machine"]["remedy"] == "run this command on the device that is to run the engine"


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ({"compute_capability": "sm110"}, "was built for another kind of GPU (sm87; here it is sm110)"),
        ({"version": "10.16.2.10"}, "was built by another version of tensorrt (10.3.0.30; here it is 10.16.2.10)"),
    ],
)
def test_an_engine_of_another_gpu_or_version_is_named_with_the_command_that_rebuilds_it(
    cli: CommandLine, cache: Path, bundles: dict[str, Bundle], device: Device, host: dict[str, str], said: str
) -> None:
    write_engine(cache / "engines" / "kept", bundles["fp16"])
    device.host = EngineHost(**{**vars(ORIN), **host})
    ended = cli("check", bundles["fp16"].path, "--threads", 1, "--json")
    assert ended.code == 1
    finding = found(ended, "engine")["machine"]["finding"]
    assert said in finding
    assert f"build it again with `starsd-edge export {bundles['fp16'].manifest.name} --engine tensorrt`" in finding
    assert device.opened == 0


def test_engines_for_other_machines_may_lie_beside_the_one_that_fits(
    cli: CommandLine, cache: Path, bundles: dict[str, Bundle], device: Device
) -> None:
    write_engine(cache / "engines" / "here", bundles["fp16"])
    other = write_engine(cache / "engines" / "other", bundles["fp16"], compute_capability="sm110")
    device.engine = open_engine(bundles["fp16"], threads=1)
    ended = cli("check", bundles["fp16"].path, "--threads", 1)
    assert ended.code == 0, ended
    assert device.opened == 1
    assert "not checked machine the engine at" in words(ended)
    ended = cli("check", bundles["fp16"].path, "--engine", other, "--threads", 1)
    assert ended.code == 1
    assert "differs machine the engine at" in words(ended)


def test_a_truncated_plan_and_one_of_another_graph_are_never_opened(
    cli: CommandLine, cache: Path, bundles: dict[str, Bundle], device: Device, tmp_path: Path
) -> None:
    cut = write_engine(tmp_path / "cut", bundles["fp16"])
    (cut / "engine.plan").write_bytes(PLAN[:-100])
    foreign = write_engine(tmp_path / "foreign", bundles["fp16"], graph_digest="0" * 64)
    short = write_engine(tmp_path / "short", bundles["fp16"], limits=EngineLimits(4096, 64, 256))
    said = ""
    for each in (cut, foreign, short):
        ended = cli("check", bundles["fp16"].path, "--engine", each, "--threads", 1, "--json")
        assert ended.code == 1
        said += " ".join(check["finding"] for check in found(ended, "engine").values())
    assert f"{cut}/engine.plan has 3996 bytes and not the 4096 that were built" in said
    assert f"the engine at {foreign} was built from another graph" in said
    assert "(limits.max_context: 4096, and the bundle allows 512)" in said
    assert said.count("it is not opened") == 3
    assert device.opened == 0


def test_an_engine_that_runs_is_compared_pass_by_pass(
    cli: CommandLine, cache: Path, bundles: dict[str, Bundle], device: Device, tmp_path: Path
) -> None:
    bundle = bundles["fp16"]
    write_engine(cache / "engines" / "kept", bundle)
    device.engine = open_engine(bundle, threads=1)
    ended = cli("check", bundle.path, "--threads", 1, "--json")
    assert ended.code == 0, ended
    checks = found(ended, "engine")
    assert {*CASES, "greedy text"} <= {*checks}
    assert {check["status"] for check in checks.values()} == {"ok"}

    path = copied(bundle, tmp_path / "other")
    perturb_weight(path, factor=-30.0)
    device.engine = open_engine(load_bundle_loosely(path), threads=1)
    ended = cli("check", bundle.path, "--threads", 1, "--json")
    assert ended.code == 1
    wrong = found(ended, "engine")["tree"]
    assert wrong["status"] == "differs"
    assert " differ by " in wrong["finding"]
    assert "starsd-edge export" in wrong["remedy"]


def test_an_engine_that_hides_its_kv_is_compared_by_its_logits_where_no_graph_runs(
    cli: CommandLine, cache: Path, bundles: dict[str, Bundle], device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hidden:
        """A sequence that shows nothing of its rows."""

        def __init__(self, inner: Any) -> None:
            self.inner = inner

        length = property(lambda self: self.inner.length)

    class Hiding:
        """An engine over another one."""

        def __init__(self, inner: Any) -> None:
            self.inner, self.spec = inner, inner.spec

        def open(self, capacity: int) -> Hidden:
            return Hidden(self.inner.open(capacity))

        def forward(self, seq: Hidden, *arguments: Any) -> Any:
            return self.inner.forward(seq.inner, *arguments)

        def commit(self, seq: Hidden, rows: Any) -> None:
            self.inner.commit(seq.inner, rows)

    write_engine(cache / "engines" / "kept", bundles["fp16"])
    device.engine = Hiding(open_engine(bundles["fp16"], threads=1))
    there = importlib.util.find_spec
    missing = "onnxruntime"
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == missing else there(name, *rest)
    )
    ended = cli("check", bundles["fp16"].path, "--json")
    assert ended.code == 0, ended
    assert "pip install '.[cpu]'" in found(ended, "recorded")["graph"]["finding"]
    checks = found(ended, "engine")
    assert checks["tree"]["finding"] == "the same numbers, 5.0e-02 allowed; its KV is not shown"
    assert checks["greedy text"]["status"] == "ok"


def test_a_draft_heads_bundle_is_compared_with_its_own_head(cli: CommandLine, cache: Path, tmp_path: Path) -> None:
    path = small_draft_bundle(tmp_path, "fp32").path
    ended = cli("check", path, "--threads", 1)
    assert ended.code == 0, ended
    assert words(ended).endswith("4 ok")
    assert "ok rows on them within" in words(ended)
    assert "--checkpoint and --engine are for those of models" in cli.refused(
        "check", path, "--checkpoint", path, "--json"
    )
    shutil.copy(path / "head.onnx", path / "head.onnx.data")
    ended = cli("check", path)
    assert ended.code == 1
    assert "differs head.onnx.data" in words(ended)
    assert "files differ, so they are not loaded" in words(ended)
