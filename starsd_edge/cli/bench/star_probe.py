"""Looks at a hub from beside it, in a process of its own that no decode loop holds up: how late its event loop
answers, and how its memory grows.

python -m starsd_edge.cli.bench.star_probe PORT, until its standard input ends; then writes what it saw as JSON.
"""

from __future__ import annotations

import http.client
import json
import select
import subprocess
import sys
import time
from types import TracebackType

import psutil

from starsd_edge.bench.figures import percentile
from starsd_edge.bench.star_runs import HubProcess
from starsd_edge.errors import StarsdError
from starsd_edge.hub_process import own_environment

_EVERY_S = 0.05
_TIMEOUT_S = 10.0
_MOST_SAMPLES = 1 << 20


class HubWatcher:
    """Use as a context manager around what loads the hub.

    Args:
        port: of the hub, on this machine.
    """

    def __init__(self, port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "starsd_edge.cli.bench.star_probe", str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=own_environment(),
        )

    def __enter__(self) -> HubWatcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def read(self) -> HubProcess:
        """End it, and take what it saw.

        Raises:
            StarsdError: it saw nothing.
        """
        written, _ = self._process.communicate(timeout=2 * _TIMEOUT_S)
        try:
            return HubProcess(**json.loads(written))
        except (ValueError, TypeError):
            raise StarsdError("the hub gave no answer to the probe beside it") from None


def watch(port: int) -> HubProcess:
    """Ask for a page of the hub again and again, until standard input ends.

    Each answer takes the event loop's lag, and the scheduling of two processes besides: what is told of the lag is what
    it is at most.
    """
    process = _listener(port)
    answers_s: list[float] = []
    memory: list[int] = []
    while not memory or (not select.select([sys.stdin], [], [], _EVERY_S)[0] and len(memory) < _MOST_SAMPLES):
        began = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        connection.close()
        answers_s.append(time.perf_counter() - began)
        memory.append(process.memory_info().rss)
    half = memory[len(memory) // 2]
    return HubProcess(memory_growth=memory[-1] / half - 1, loop_lag_ms_p99=1e3 * percentile(answers_s, 0.99))


def _listener(port: int) -> psutil.Process:
    """The process that listens there."""
    found = (
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
    )
    pid = next(found, None)
    if pid is None:  # which psutil would take for this process
        raise ProcessLookupError(f"no process of ours listens on port {port}")
    return psutil.Process(pid)


if __name__ == "__main__":
    seen = watch(int(sys.argv[1]))
    print(json.dumps({"memory_growth": seen.memory_growth, "loop_lag_ms_p99": seen.loop_lag_ms_p99}))
