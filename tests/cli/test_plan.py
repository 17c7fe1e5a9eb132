"""`starsd-edge plan` as a user meets it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from starsd_edge.bundles.bundle import load_bundle
from starsd_edge.doctor.curve_store import curve_key, keep_curves
from tests.support.command_line import CommandLine
from tests.support.letter_bundle import write_bundle

TABLE = ("--pass-ms", 12, "--level-ms", 0, "--session-ms", 0, "--own-ms", 0, "--max-batch", 1)
"""The example of the theory: S = 12 ms, a verify pass of 35 ms whatever its rows, a plain step of 25 ms."""
FLAT = ("--verify-ms", "1=35,9=35", "--plain-ms", 25, "--feature-bytes", 0, "--mbit", 1e9)
MEASURED = {"service_s": {"1": [0.011, 0.013]}, "return_s": [0.034, 0.038], "tokens_per_round": 4.36}

OUR_POINT = {"sweep": "scale", "system": "starsd-edge", "N": 1, "S ms": 12.0, "Z ms": 36.0, "tokens/round": 3.0}


def planned(cli: CommandLine, *arguments: object) -> dict[str, Any]:
    ended = cli("plan", *arguments, "--json")
    assert (ended.code, ended.err) == (0, ""), ended
    found: dict[str, Any] = json.loads(ended.out)
    return found


@pytest.mark.parametrize(("rtt_ms", "full", "rate"), [(1, 4, 90.8), (10, 5, 76.5), (50, 9, 44.9)])
def test_the_table_of_the_theory(cli: CommandLine, rtt_ms: int, full: int, rate: float) -> None:
    """A chain of 8 at this acceptance gives E = 4.51; the table's rates are those of 4.36."""
    found = planned(cli, *TABLE, *FLAT, "--rtt-ms", rtt_ms, "--acceptance", "0.8126", "--largest-draft", "8x8")
    one = found["one_target"]
    assert one["targets_full"] == full
    assert one["tokens_per_round"] == pytest.approx(4.51, abs=0.01)
    assert one["tokens_per_s"] == pytest.approx(rate * 4.51 / 4.36, rel=0.01)
    assert one["targets_break_even"] == 9
    assert one["sweet_spot"] == [full, 9]
    assert one["break_even_rtt_ms"] == pytest.approx(25 * 4.51 - 47, abs=0.4)


def test_the_simulation_stands_beside_the_closed_form(cli: CommandLine) -> None:
    found = planned(cli, *TABLE, *FLAT, "--jitter", 0, "--targets", 3)
    rows = {row["targets"]: row for row in found["targets"]}
    assert {1, 3, 4, 8} <= rows.keys()
    for row in rows.values():
        assert row["simulated_tokens_per_s"] == pytest.approx(row["tokens_per_s"], rel=0.03)
        assert row["simulated_utilisation"] == pytest.approx(row["utilisation"], abs=0.03)
    varied = planned(cli, *TABLE, *FLAT, "--jitter", 0.5, "--targets", 3)
    assert varied["targets"][2]["simulated_utilisation"] < rows[3]["utilisation"]


def test_drafts_grow_with_the_link_and_shrink_with_the_load(cli: CommandLine) -> None:
    found = planned(cli, "--max-batch", 1, "--targets", 12)
    depths = [int(link["draft"].split("x")[1]) for link in found["links"]]
    assert depths == sorted(depths)
    assert depths[-1] > depths[0]
    rows = {row["targets"]: row["drafts"] for row in found["targets"]}
    assert rows[1] == "5x5x1"
    assert rows[12] == "1x1x1"


def test_where_nothing_pays_targets_decode_plainly(cli: CommandLine) -> None:
    found = planned(cli, "--acceptance", "0.05", "--verify-ms", "30")
    assert found["one_target"]["gain_over_plain"] < 1
    assert {row["drafting"] for row in found["targets"]} == {0}
    ended = cli("plan", "--acceptance", "0.05", "--verify-ms", "30")
    assert "no faster than plain decoding" in ended.out


@pytest.mark.parametrize(
    "arguments",
    [(), ("--max-batch", 1, "--targets", 500), ("--memory-gib", 64, "--weights-gib", 12.55, "--kv-kib", 512)],
)
def test_it_fits_eighty_columns(cli: CommandLine, arguments: tuple[object, ...]) -> None:
    ended = cli("plan", *arguments)
    assert ended.code == 0
    assert max(map(len, ended.out.splitlines())) <= 80
    assert "assumed" in ended.out


def test_memory_of_a_known_case(cli: CommandLine) -> None:
    memory = planned(cli, "--memory-gib", 22.8, "--weights-gib", 6.28, "--kv-kib", 512, "--context", 1024)["memory"]
    assert (memory["targets_with_co_located_draft"], memory["targets_with_hub"]) == (2, 3)


def test_a_bundle_brings_its_measured_times_and_sizes(cli: CommandLine, cache: Path) -> None:
    (cache / "bundles").mkdir(parents=True)
    bundle = write_bundle(cache / "bundles" / "letters")
    assumed = planned(cli, "letters", "--threads", 1)
    assert "bench verify" in assumed["sources"]["verify"]
    times = {1: [0.050], 2: [0.051], 16: [0.060]}
    manifest = load_bundle(bundle).manifest
    kept = keep_curves(curve_key(manifest, 1), manifest, {128: times}).stored
    found = planned(cli, "letters", "--threads", 1, "--own-ms", 0, "--memory-gib", 1)
    where = f"measured at {kept.measured_at} UTC on {kept.device}"
    assert found["sources"]["verify"].startswith(f"{where}: 50 ms at 1, 51 ms at 2")
    assert found["memory"]["targets_with_hub"] == 2, "0.35 GiB for each process, next to nothing for the letters"


def test_times_of_another_device_are_better_than_none(cli: CommandLine, cache: Path) -> None:
    (cache / "bundles").mkdir(parents=True)
    manifest = load_bundle(write_bundle(cache / "bundles" / "letters")).manifest
    here = curve_key(manifest, 1)
    key = replace(here, machine={**here.machine, "gpu": "Orin"}, device="jetson", power_mode="25W")
    kept = keep_curves(key, manifest, {16: {1: [0.040], 8: [0.041]}}).stored
    verify = planned(cli, "letters", "--threads", 1)["sources"]["verify"]
    assert verify == f"measured at {kept.measured_at} UTC on Orin, 25W: 40 ms at 1, 41 ms at 8 rows"


def test_it_plans_from_measured_times(cli: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    file.write_text(json.dumps({**MEASURED, "plain_step_s": 0.025, "label": "timing backend"}))
    found = planned(cli, "--from", file)
    one = found["one_target"]
    assert (one["targets_full"], one["targets_break_even"]) == (4, 9)
    assert one["tokens_per_s"] == pytest.approx(4.36 / 0.048)
    assert found["sources"] == {"times": "timing backend: 2 times of S, 2 of Z"}
    assert (found["links"], one["draft"]) == ([], None)
    for row in found["targets"]:
        assert row["simulated_tokens_per_s"] == pytest.approx(row["tokens_per_s"], rel=0.06)
    file.write_text(json.dumps(MEASURED))
    ended = cli("plan", "--from", file)
    assert "plain_step_s" in ended.out


def test_it_plans_from_the_points_of_a_bench(cli: CommandLine, tmp_path: Path) -> None:
    def point(system: str, targets: int, **fields: object) -> dict[str, object]:
        return {"label": "timing backend", "sweep": "scale", "system": system, "N": targets, **fields}

    ours = {"Z ms": 36.0, "tokens/round": 3.0}
    points = [
        point("published", 1, **{"S ms": 99.0, "Z ms": 99.0, "tokens/round": 2.0}),
        point("starsd-edge", 1, **ours, **{"S ms": 12.0, "drafts/pass": 1.0}),
        point("starsd-edge", 8, **ours, **{"S ms": 18.0, "drafts/pass": 4.2}),
        {**point("plain", 1, **{"per target": 40.0, "S ms": None}), "sweep": "baselines"},
    ]
    file = tmp_path / "points.json"
    file.write_text(json.dumps(points))
    one = planned(cli, "--from", file)["one_target"]
    assert one["tokens_per_s"] == pytest.approx(3 / 0.048)
    assert one["gain_over_plain"] == pytest.approx(3 / 0.048 / 40)
    assert one["targets_break_even"] > 12, "batches of 4 take 18 ms"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--acceptance", "often"), "--acceptance is a probability"),
        (("--acceptance", "0.7,1.2"), "between 0 and 1"),
        (("--verify-ms", "fast"), "--verify-ms is one number"),
        (("--verify-ms", "2=30,4=40"), "with one for 1 row"),
        (("--verify-ms", "1=30,four=40"), "--verify-ms is one number"),
        (("--verify-ms", "-3"), "--verify-ms is one number"),
        (("--verify-ms", "1=35,4=20"), "none faster than one over fewer rows"),
        (("--largest-draft", "8"), "NODESxDEPTHxBRANCHING"),
        (("--largest-draft", "2x8x1"), "no more levels than nodes"),
        (("--largest-draft", "9999x8x1"), "at most 256 nodes"),
        (("--pass-ms", 0, "--level-ms", 0, "--session-ms", 0), "--pass-ms"),
        (("--plain-ms", 0), "--plain-ms"),
        (("--rtt-ms", "inf"), "--rtt-ms is a number"),
        (("--memory-gib", 8), "--weights-gib"),
        (("--from", "none.json", "letters"), "leave the BUNDLE out"),
        (("--from", "none.json"), "none.json cannot be read"),
        (("no-such-bundle",), "no-such-bundle"),
        (("--targets", 0), "--targets"),
    ],
)
def test_wrong_inputs_give_one_clear_line(
    cli: CommandLine, cache: Path, arguments: tuple[object, ...], said: str
) -> None:
    ended = cli("plan", *arguments)
    assert ended.code != 0
    assert ended.out == ""
    assert len(ended.err.splitlines()) == 1
    assert said in ended.err


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        "nonsense",
        '[{"sweep": "scale"}]',
        json.dumps({**MEASURED, "return_s": []}),
        json.dumps({**MEASURED, "service_s": {"none": [0.1]}}),
        json.dumps({**MEASURED, "tokens_per_round": 0.5}),
        json.dumps({**MEASURED, "service": 1}),
        json.dumps([{**OUR_POINT, "S ms": -12.0}]),
        json.dumps([{**OUR_POINT, "Z ms": -36.0}]),
    ],
)
def test_a_file_without_measured_times_is_refused(cli: CommandLine, tmp_path: Path, content: str) -> None:
    file = tmp_path / "times.json"
    file.write_text(content)
    ended = cli("plan", "--from", file)
    assert (ended.code, ended.out, len(ended.err.splitlines())) == (2, "", 1)
    assert str(file) in ended.err
