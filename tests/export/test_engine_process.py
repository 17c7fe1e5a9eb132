"""A build in a process of its own: what it says comes back, its end is told, and it does not outlive whoever waits."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from starsd_edge.errors import StarsdError
from starsd_export.engines.builder import BuildError
from starsd_export.engines.worker import Order, Progress, run_build

ORDER = Order("tensorrt-rtx", "graph.onnx", "plan", [{"x": ([1], [2], [3])}], ["sm89"], None)
BUILT = {"type": "built", "version": "1.7.1.116", "tensors": [], "memory_bytes": 7}


def script(body: str) -> tuple[str, ...]:
    return sys.executable, "-c", f"import json, os, signal, sys\norder = json.loads(sys.stdin.readline())\n{body}"


def say(*reports: object) -> str:
    return f"for report in {list(reports)!r}: print(json.dumps(report), flush=True)\n"


def test_progress_and_the_result_come_back() -> None:
    steps: list[Progress] = []
    progress = {"type": "progress", "phase": "Optimizing", "done": 3, "of": 30}
    body = "assert order['compute_capabilities'] == ['sm89'], order\n" + say(progress, BUILT)
    built = run_build(ORDER, steps.append, script(body))
    assert steps == [Progress("Optimizing", 3, 30)]
    assert (built.version, built.memory_bytes) == ("1.7.1.116", 7)


def test_what_the_builder_refuses_is_the_error_with_its_code() -> None:
    failed = {"type": "failed", "message": "it does not take this graph", "exit_code": 2}
    with pytest.raises(StarsdError, match="does not take this graph") as caught:
        run_build(ORDER, lambda report: None, script(say(failed)))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was ended by SIGSEGV before the engine was built"),
        ("os.kill(os.getpid(), signal.SIGKILL)", r"SIGKILL \(when memory runs out, the system does that\)"),
        ("sys.exit('the disk  is\\nfull')", "ended with code 1 before the engine was built: the disk is full"),
    ],
)
def test_a_process_that_dies_is_an_error_and_no_crash(body: str, said: str) -> None:
    with pytest.raises(BuildError, match=said):
        run_build(ORDER, lambda report: None, script(body))


def test_an_interrupted_build_is_told_to_stop_and_waited_for(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    progress = {"type": "progress", "phase": "Optimizing", "done": 0, "of": 30}
    body = say(progress) + f"sys.stdin.read()\nopen({str(ended)!r}, 'w').write(str(os.getpid()))"

    def interrupt(report: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_build(ORDER, interrupt, script(body))
    assert not Path(f"/proc/{ended.read_text()}").exists()
