"""Driver for tarsk-redis (PyPI): one child process with `concurrency` slots, results stored (`result_ttl`).

tarsk runs handlers only in processes that its own command line starts, so the worker roles start that command
and the handler answers through a FIFO. Two variants: "tarsk", which stores results as every other library
measured here does, and "tarsk-bare" (TARSK_BENCH_RESULTS=0), tarsk's default, which stores none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.bench.peers.protocol import DrainGauge, Hit, LatenessGauge, emit, main

library: Any = import_module("tarsk")
KEEP_RESULTS = os.environ.get("TARSK_BENCH_RESULTS", "1") == "1"

app: Any = library.App(broker=os.environ["BENCH_URL"])  # set by the harness for every driver


def _answer(**message: Any):
    with open(os.environ["TARSK_BENCH_FIFO"], "w", encoding="utf-8") as fifo:
        fifo.write(json.dumps(message) + "\n")


def _gauge() -> Hit | None:
    """The gauge of the role this child process serves; none in a producer."""
    kind, _, jobs = os.environ.get("TARSK_BENCH_GAUGE", "").partition(":")
    if not kind:
        return None
    chosen = DrainGauge if kind == "drain" else LatenessGauge
    gauge = chosen(int(jobs), lambda: _answer(result=gauge.result()))
    return gauge


hit = _gauge()


async def _started():
    if "TARSK_BENCH_FIFO" in os.environ:
        _answer(ready=True)


async def _handle(data: dict[str, Any]) -> Any:
    return hit(data) if hit is not None else None


app.on_start(_started)
noop: Any = app.task(name="noop", result_ttl=600.0 if KEEP_RESULTS else 0.0)(_handle)


class Tarsk:
    """The producer side; the worker roles are `serve`'s."""

    def __init__(self, url: str):
        self._url = url

    async def add(self, data: dict[str, Any], delay: int) -> object:
        return noop.send_in(delay / 1000, data) if delay else noop.send(data)

    async def add_bulk(self, rows: list[dict[str, Any]]) -> object:
        return [noop.send(row) for row in rows]

    async def start_worker(self, hit: Hit, concurrency: int, threads: bool):
        raise NotImplementedError("tarsk's own command line runs its workers")

    async def stop_worker(self): ...

    async def completed(self) -> int | None:
        return None

    async def close(self): ...


def serve(role: str, url: str, params: dict[str, Any]):
    """Start `tarsk worker`, pass on what its handler answers, stop it."""
    with tempfile.TemporaryDirectory() as folder:
        fifo = Path(folder, "answers")
        os.mkfifo(fifo)
        environment = {
            **os.environ,
            "TARSK_BENCH_FIFO": str(fifo),
            "TARSK_BENCH_GAUGE": f"{role}:{params['jobs']}",
        }
        command = [
            str(Path(sys.executable).with_name("tarsk")),
            "worker",
            "--app",
            "tests.bench.peers.tarsk:app",
        ]
        command += ["--broker", url, "--children", "1", "--slots", str(params["concurrency"])]
        answers = os.fdopen(os.open(fifo, os.O_RDWR), encoding="utf-8")
        with answers, subprocess.Popen(command, env=environment, stdout=sys.stderr) as worker:
            try:
                for line in answers:
                    message = json.loads(line)
                    if "result" in message:
                        emit(result=message["result"])
                        break
                    if role == "listen":
                        emit(ready=True)
            finally:
                worker.terminate()


if __name__ == "__main__":
    if sys.argv[1] in ("drain", "listen"):
        serve(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
    else:
        main(Tarsk)
