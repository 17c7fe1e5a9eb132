"""`starsd-edge doctor` as a user meets it: on the numpy engine, with real hubs, old hubs and none."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from starsd_edge.bundles.bundle import load_bundle, write_manifest
from starsd_edge.bundles.engine_manifest import EngineHost, platform_name
from starsd_edge.bundles.manifest import TensorrtGraph
from starsd_edge.cli.doctor import bundle as doctor_bundle
from starsd_edge.cli.doctor import machine as doctor_machine
from starsd_edge.cli.doctor import network as doctor_network
from starsd_edge.device.facts import read_device
from starsd_edge.device.import_probe import ProbedModule
from starsd_edge.doctor import gather
from starsd_edge.errors import EngineError, UsageError
from starsd_edge.speculation.tree import DraftTree
from starsd_jetson import target as target_module
from starsd_server.drafters.causal_lm import CausalLmDrafter
from starsd_server.settings import DoorSettings, HubSettings
from tests.support.boards import Machine, agx_orin, desktop, orin_nano, thor
from tests.support.command_line import CommandLine, Ended
from tests.support.decoding import WORDS
from tests.support.hub_client import running_hub
from tests.support.letter_bundle import write_bundle
from tests.support.odd_peers import OddPeer, http
from tests.support.prefix_engine import PrefixEngine, UnhurriedEngine
from tests.support.scripted_hub import Asked, Reply, ScriptedHub
from tests.support.small_engine import small_engine, write_small_engine

CONTEXT = 128
BUNDLE_TOKENIZER = "0" * 64
MODEL = 1


class Doctor(CommandLine):
    """The command on a cache of its own, with the numpy engine in the place of every other."""

    def __init__(self, capture: pytest.CaptureFixture[str], cache: Path) -> None:
        super().__init__(capture)
        self.cache = cache

    def add_bundle(self, name: str = "letters") -> Path:
        (self.cache / "bundles").mkdir(parents=True, exist_ok=True)
        return write_bundle(self.cache / "bundles" / name)

    def run(self, *arguments: object) -> Ended:
        return self("doctor", *arguments)

    def checks(self, *arguments: object) -> dict[str, dict[str, str]]:
        """The findings of --json by name; of several of one name the last."""
        ended = self.run(*arguments, "--json")
        assert ended.err == "", ended
        return {check["name"]: check for check in json.loads(ended.out)["checks"]}


@pytest.fixture
def doctor(capfd: pytest.CaptureFixture[str], cache: Path, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    engine = UnhurriedEngine(MODEL, max_context=CONTEXT)
    monkeypatch.setattr(target_module, "open_engine", lambda *arguments, **named: engine)
    return Doctor(capfd, cache)


def test_a_new_machine_is_told_what_to_do_next(doctor: Doctor) -> None:
    ended = doctor.run()
    assert ended.code == 0
    assert max(map(len, ended.out.splitlines())) <= 80
    words = " ".join(ended.out.split())
    here = "" if find_spec("torch") else "export on a machine that has the extra for it ("
    assert f"-> {here}starsd-edge pull smollm2-135m && starsd-edge export smollm2-135m" in words
    assert "engine jetson no NVIDIA GPU on this machine" in words
    assert "\x1b" not in ended.out, "no colour where there is no terminal"
    assert words.endswith("not run")
    assert all(line.startswith("doctor: ") for line in ended.err.splitlines())
    assert not doctor.cache.exists(), "looking leaves nothing behind"


def on(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the doctor look at that machine instead."""
    monkeypatch.setattr(doctor_machine, "Host", lambda: machine.host)
    monkeypatch.setattr(doctor_machine, "read_device", lambda host: read_device(host, machine.devices))


@pytest.mark.parametrize("board", [orin_nano, agx_orin, thor, desktop])
def test_other_machines_are_described_within_80_columns(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, board: Callable[[Path], Machine]
) -> None:
    on(board(tmp_path / "machine"), monkeypatch)
    doctor.add_bundle()
    ended = doctor.run()
    assert ended.code == 0, ended
    assert max(map(len, ended.out.splitlines())) <= 80
    found = doctor.checks()
    assert {"clocks", "temperature", "gpu"} <= set(found)
    assert ("board" in found, "jetpack" in found) == (board is not desktop,) * 2


def test_a_bundle_for_engines_on_a_board(doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on(orin_nano(tmp_path / "machine"), monkeypatch)
    found_modules = {"tensorrt": ProbedModule("10.3.0")}
    monkeypatch.setattr(gather, "probe_module", lambda name, run: found_modules.get(name))
    doctor.add_bundle("for-cores")
    assert "no engine can be built" in doctor.checks("for-cores")["engine"]["finding"]
    path = doctor.add_bundle("for-engines")
    manifest = load_bundle(path).manifest
    graph = msgspec.structs.replace(manifest.graph, tensorrt=TensorrtGraph("fp16", 0))
    write_manifest(path, msgspec.structs.replace(manifest, graph=graph))
    found = doctor.checks("for-engines")
    assert found["engine memory"]["level"] == "ok"
    assert "to run with 128 tokens" in found["engine memory"]["finding"]
    remedy = f"starsd-edge export {path} --engine tensorrt"
    assert (found["engine"]["level"], found["engine"]["remedy"]) == ("note", remedy)
    here = EngineHost("tensorrt", "10.3.0.30", "sm87", platform_name())
    write_small_engine(doctor.cache / "engines/one", small_engine(load_bundle(path).manifest, here))
    found = doctor.checks("for-engines")
    assert found["engine"]["level"] == "ok", "Python tells three parts of the version"
    assert found["engine jetson"]["finding"].startswith("for-engines: ran, ")
    assert {"engine cpu", "memory"} & set(found) == {"memory"}, "it runs where its engine is, and there alone"
    assert found["engine cuda"]["level"] == "not-run"


def test_a_gpu_that_onnxruntime_was_built_for_runs_bundles_too(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(desktop(tmp_path / "machine"), monkeypatch)
    monkeypatch.setattr(gather, "_providers", lambda: ("CUDAExecutionProvider", "CPUExecutionProvider"))
    doctor.add_bundle()
    found = doctor.checks()
    assert [found[f"engine {device}"]["level"] for device in ("cpu", "cuda", "jetson")] == ["ok", "ok", "not-run"]


def test_every_bundle_of_the_cache_is_run(doctor: Doctor) -> None:
    doctor.add_bundle("one")
    doctor.add_bundle("two")
    out = doctor.run().out
    for name in ("one", "two"):
        assert f"{name}: 3 files whole" in out
        assert f"{name}: ran, " in out
    assert "same bits as steps" in " ".join(out.split())


def test_a_draft_head_is_looked_at_as_one_that_hubs_run(doctor: Doctor, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from tests.support.small_head import small_draft_bundle

    made = small_draft_bundle(tmp_path, "fp32").path
    assert (code := doctor.run("--bundle", made)).code == 0, code
    finding = doctor.checks("--bundle", made)["bundle"]
    assert (finding["level"], "a draft head for run-draft, fp32 weights" in finding["finding"]) == ("ok", True)
    (made / "head.onnx").write_bytes(b"altered")
    finding = doctor.checks("--bundle", made)["bundle"]
    assert (finding["level"], "head.onnx" in finding["finding"]) == ("failure", True)


def test_only_the_bundles_that_were_named_are_looked_at(doctor: Doctor) -> None:
    for name in ("one", "two", "three"):
        doctor.add_bundle(name)
    out = doctor.run("one", "--bundle", "two").out
    assert "one: ran" in out
    assert "two: ran" in out
    assert "three" not in out


def test_scripts_get_one_object(doctor: Doctor) -> None:
    doctor.add_bundle()
    ended = doctor.run("--json")
    assert (ended.code, ended.err, ended.out.count("\n")) == (0, "", 1)
    content = json.loads(ended.out)
    assert content["version"] == 1
    assert {check["level"] for check in content["checks"]} <= {"ok", "note", "warning", "not-run"}
    assert all(set(check) == {"name", "level", "finding", "remedy"} for check in content["checks"])


def test_an_altered_bundle_fails_and_the_others_are_still_checked(doctor: Doctor) -> None:
    doctor.add_bundle("good")
    graph = doctor.add_bundle("bad") / "model.onnx"
    graph.write_bytes(b"other")
    ended = doctor.run()
    assert ended.code == 1
    words = " ".join(ended.out.split())
    assert "is not the file that was exported" in words
    assert "good: ran" in words
    assert "1 failure" in words


def test_a_bundle_that_is_not_there_fails(doctor: Doctor) -> None:
    ended = doctor.run("nowhere")
    assert ended.code == 1
    assert "no bundle named 'nowhere'" in " ".join(ended.out.split())


@pytest.mark.parametrize(
    ("fault", "level", "words"),
    [
        (EngineError("ONNX Runtime cannot load it: export the bundle again"), "failure", "letters: ONNX Runtime"),
        (ModuleNotFoundError("no", name="onnxruntime"), "not-run", "pip install '.[cpu]'"),
        (UsageError("--device cpu needs a package"), "not-run", "letters: --device cpu needs a package"),
    ],
)
def test_an_engine_that_does_not_open(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, fault: Exception, level: str, words: str
) -> None:
    def open_engine(*arguments: object, **named: object) -> None:
        raise fault

    monkeypatch.setattr(target_module, "open_engine", open_engine)
    doctor.add_bundle()
    found = doctor.checks()["engine cpu"]
    assert (found["level"], words in found["finding"]) == (level, True)


def test_a_bundle_that_does_not_fit_into_memory_is_not_run(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_bundle, "available_memory", lambda: 10)
    doctor.add_bundle()
    found = doctor.checks()
    assert found["memory"]["level"] == "warning"
    assert (found["engine cpu"]["level"], "does not fit" in found["engine cpu"]["finding"]) == ("not-run", True)


def test_two_onnxruntimes_fail_with_the_command_that_mends_it(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"onnxruntime": ["onnxruntime", "onnxruntime-gpu"]}
    monkeypatch.setattr(gather, "packages_distributions", lambda: both)
    ended = doctor.run()
    assert ended.code == 1
    assert "pip uninstall -y onnxruntime onnxruntime-gpu" in " ".join(ended.out.split())


def test_the_usual_port_may_be_taken_and_one_that_was_asked_for_may_not(doctor: Doctor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = doctor.checks("--port", port)["port"]
    assert found["level"] == "failure"
    assert f"port {port} on 127.0.0.1 is in use" in found["finding"]
    assert doctor.checks("--port", port)["port"]["level"] == "ok"
    assert doctor.run("--port", 70000).code == 2


async def test_a_hub_on_the_port_is_known_as_one_and_not_to_be_stopped(doctor: Doctor) -> None:
    """Also one with a token, which the doctor does not have."""
    async with running_hub(settings=HubSettings(DoorSettings(token="secret"))) as hub:
        found = await asyncio.to_thread(doctor.checks, "--port", hub.port)
        line = await asyncio.to_thread(doctor.refused, "run-draft", "--port", hub.port)
    assert found["port"]["level"] == "ok"
    assert found["port"]["finding"] == f"a hub listens on {hub.port} (`starsd-edge monitor` shows it)"
    assert f"a hub listens on port {hub.port} of 127.0.0.1 already (`starsd-edge monitor` shows it)" in line


def test_who_answers_like_any_server_is_no_hub(doctor: Doctor) -> None:
    with OddPeer({"200": http("200 OK", body="ok\n")}) as peer:
        assert "is in use: stop the program that listens there" in doctor.checks("--port", peer.port)["port"]["finding"]


def test_a_machine_that_cannot_export_is_told_where_bundles_come_from(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_machine, "find_spec", lambda name: None)
    remedy = doctor.checks()["bundle"]["remedy"]
    assert remedy.startswith("export on a machine that has the extra for it")
    assert remedy.endswith("and copy the bundle here")


def test_token_files(doctor: Doctor, tmp_path: Path) -> None:
    token = tmp_path / "hub.token"
    token.touch(mode=0o600)
    token.write_text("secret-of-the-hub\n")
    ended = doctor.run("--token-file", token)
    assert "token file" in ended.out
    assert "secret" not in ended.out
    token.chmod(0o644)
    found = doctor.checks("--token-file", token)["token file"]
    assert (found["level"], "chmod 600" in found["finding"]) == ("failure", True)
    assert doctor.checks("--token-file", tmp_path / "none")["token file"]["level"] == "failure"


def own_drafter() -> CausalLmDrafter:
    """Drafts with the bundle's own model."""
    return CausalLmDrafter(PrefixEngine(MODEL, max_context=CONTEXT), BUNDLE_TOKENIZER, WORDS, 8)


async def test_a_hub_that_fits(doctor: Doctor) -> None:
    doctor.add_bundle()
    async with running_hub([own_drafter()]) as hub:
        found = await asyncio.to_thread(doctor.checks, "--hub", hub.url)
    assert found["hub"]["level"] == "ok"
    assert found["drafter"]["finding"].startswith("letters: causal-lm")
    assert found["fingerprints"]["finding"].startswith("letters: tokenizer 000000000000, drafter ")


async def test_a_hub_whose_model_does_not_fit_is_a_warning_with_its_reason(doctor: Doctor) -> None:
    doctor.add_bundle()
    other = CausalLmDrafter(PrefixEngine(MODEL, max_context=CONTEXT), "f" * 64, WORDS, 8)
    async with running_hub([other]) as hub:
        found = await asyncio.to_thread(doctor.checks, "--hub", hub.url)
    assert found["drafter"]["level"] == "warning"
    assert "letters: ngram, because causal-lm" in found["drafter"]["finding"]


async def test_a_hub_without_a_bundle_is_tried_all_the_same(doctor: Doctor) -> None:
    async with running_hub() as hub:
        found = await asyncio.to_thread(doctor.checks, "--hub", hub.url)
    assert (found["hub"]["level"], found["drafter"]["level"]) == ("ok", "not-run")


async def test_a_hub_that_does_not_let_this_machine_in_is_a_failure(doctor: Doctor, tmp_path: Path) -> None:
    token = tmp_path / "hub.token"
    token.touch(mode=0o600)
    token.write_text("wrong-token\n")
    async with running_hub(settings=HubSettings(DoorSettings(token="right-token"))) as hub:
        without = await asyncio.to_thread(doctor.run, "--hub", hub.url)
        wrong = await asyncio.to_thread(doctor.run, "--hub", hub.url, "--token-file", token)
    assert (without.code, wrong.code) == (1, 1)
    assert "give its token with --token-file" in " ".join(without.out.split())
    assert "check --token-file" in " ".join(wrong.out.split())
    assert "wrong-token" not in wrong.out


def test_a_hub_that_is_not_there_is_a_failure(doctor: Doctor) -> None:
    found = doctor.checks("--hub", "ws://127.0.0.1:9")
    assert (found["hub"]["level"], "cannot be reached" in found["hub"]["finding"]) == ("failure", True)


async def test_the_link_and_what_the_hub_is_worth(doctor: Doctor) -> None:
    doctor.add_bundle()
    async with running_hub([own_drafter()]) as hub:
        first = await asyncio.to_thread(doctor.run, "--network", hub.url)
        second = await asyncio.to_thread(doctor.run, "--network", hub.url, "--json")
        third = await asyncio.to_thread(doctor.checks, "--network", hub.url, "--remeasure", "--acceptance", 0)
    assert first.code == 0, first
    assert max(map(len, first.out.splitlines())) <= 80
    words = " ".join(first.out.split())
    for said in ("(TCP, from the kernel)", "40 small messages took", "segments sent from here were sent again"):
        assert said in words
    assert "up, " in words or "took no longer than small ones" in words, "loopback has no goodput to speak of"
    assert "measured now" in words
    content = json.loads(second.out)
    found = {check["name"]: check for check in content["checks"]}
    assert " UTC" in found["verify"]["finding"], "the curve was kept"
    figures = {figure["name"]: figure["value"] for figure in content["figures"]}
    assert figures["tokens_per_round"] == pytest.approx(5, abs=0.2), "the hub's model is the target's own"
    assert figures.get("goodput_up_mb_per_s", 1.0) > 0
    assert figures["predicted_gain"] > 0
    assert figures["measured_gain"] > 0
    assert {"gain", "measured", "break-even", "limit", "targets"} <= set(found)
    assert third["verify"]["finding"].endswith("measured now")
    assert "assumed 1.00 tokens" in third["gain"]["finding"]


@pytest.fixture
def truthful() -> Iterator[ScriptedHub]:
    """A hub of before probes that guesses what the target will say."""
    engine = PrefixEngine(MODEL, max_context=CONTEXT)

    def script(asked: Asked) -> list[Reply]:
        text = list(asked.text)
        for _ in range(min(asked.request.max_nodes, asked.request.max_depth)):
            text.append(int(engine.prefix_logits(text).argmax()))
        return [asked.draft(DraftTree.chain(text[len(asked.text) :]))]

    with ScriptedHub(script) as hub:
        yield hub


def test_an_old_hub_is_measured_by_its_drafts(doctor: Doctor, truthful: ScriptedHub) -> None:
    doctor.add_bundle()
    found = doctor.checks("--network", truthful.url)
    assert (found["goodput"]["level"], found["goodput"]["finding"]) == ("not-run", "not measured (hub too old)")
    assert " drafts took " in found["jitter"]["finding"]
    assert found["gain"]["level"] in {"ok", "note", "warning"}


def test_a_hub_that_drafts_nothing_fails(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_network, "WARM_UP_S", 0.1)
    doctor.add_bundle()
    with ScriptedHub(lambda asked: [asked.draft(DraftTree.empty())]) as hub:
        ended = doctor.run("--network", hub.url)
    assert ended.code == 1
    assert "drafted for none of 3 answers" in " ".join(ended.out.split())


@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    [
        (["--hub", "http://desk"], "not the address of a hub", 2),
        (["--network", "desk:port"], "not the address of a hub", 2),
        (["--network", "ws://u:p@desk"], "must not hold a secret", 2),
        (["--network", "ws://a", "--hub", "ws://b"], "leave out --hub and --port", 2),
        (["--network", "ws://a", "--port", "1"], "leave out --hub and --port", 2),
        (["--network", "ws://a", "one", "two"], "name one", 2),
        (["--network", "ws://a", "--token-file", "/nowhere"], "cannot be read", 2),
        (["--network", "ws://a"], "there is no bundle to predict for", 2),
        (["--acceptance", "0.5"], "need --network", 2),
        (["--remeasure"], "need --network", 2),
        (["--device", "jetson"], "need --network", 2),
        (["--network", "ws://a", "--device", "toaster"], "no device 'toaster'", 2),
        (["--network", "ws://a", "--acceptance", "1.5"], "--acceptance", 2),
        (["--threads", "0"], "--threads", 2),
        (["--no-such-option"], "--no-such-option", 2),
        (["--network", "ws://a", "nowhere"], "no bundle named 'nowhere'", 1),
    ],
)
def test_wrong_input_is_one_clear_line(doctor: Doctor, arguments: list[str], says: str, code: int) -> None:
    ended = doctor.run(*arguments)
    errors = [line for line in ended.err.splitlines() if not line.startswith("doctor: ")]
    assert (ended.code, ended.out, len(errors)) == (code, "", 1), ended
    assert errors[0].startswith("error: ")
    assert says in errors[0]


def test_which_of_several_bundles_is_asked(doctor: Doctor) -> None:
    doctor.add_bundle("one")
    doctor.add_bundle("two")
    assert "name the bundle to predict for with --bundle (here: one, two)" in doctor.refused(
        "doctor", "--network", "ws://127.0.0.1:9"
    )


def test_a_link_to_nowhere_is_one_line(doctor: Doctor) -> None:
    doctor.add_bundle()
    ended = doctor.run("--network", "ws://127.0.0.1:9")
    assert ended.code == 1
    assert ended.out == ""
    assert "error: the hub ws://127.0.0.1:9 cannot be reached" in ended.err.splitlines()[-1]
