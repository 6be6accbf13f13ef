"""Data sources that fail at a point set by the test. Spark's processes import this module: it imports no pytest.

Options: `fault` (raise, kill, exit, or hang until another attempt has read everything), `faultpartition`,
`faultattempts` (how many attempts of it fail), `faultrow` (after so many rows), `folder` (files that say what
happened), `commit` (crash after so many calls, or `before`), `how` (SIGKILL instead of an error: `kill` and `all` end
the driver program, the JVM and this process, `driver`, `jvm` and `python` one of them; their process ids are in the
files `driver` and `jvm`), `abort` (never), `wait` (the other partitions wait for that to be noted in `folder`).
"""

import os
import signal
import time
from os import _exit
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pyspark import TaskContext

from glidemq_py._features import staged_writes as writes
from glidemq_py.spark import writer
from pyspark_glidemq import DefaultSource

FAULTS = ("fault", "faultpartition", "faultattempts", "faultrow", "folder", "commit", "how", "wait", "abort")
PATIENCE = 1_800


def note(folder, name, text=""):
    if folder:
        (Path(folder) / f"{name}-{time.time_ns()}-{os.getpid()}").write_text(text)


def kill(folder, victim):
    """Kill one process, or all: the driver program and its JVM, which are a process group, and this process."""
    if victim in ("driver", "jvm"):
        os.kill(int((Path(folder) / victim).read_text()), signal.SIGKILL)
        return
    if victim != "python":
        os.killpg(int((Path(folder) / "driver").read_text()), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for(folder, name, patience=PATIENCE):
    deadline = time.monotonic() + patience
    while not list(Path(str(folder)).glob(f"{name}-*")):
        if time.monotonic() > deadline:
            raise TimeoutError(name)
        time.sleep(0.02)


def failing(batches, faults):
    """The batches, with the configured faults."""
    context, rows = TaskContext.get(), 0
    assert context is not None
    mine = context.partitionId() == int(faults.get("faultpartition", 0))
    doomed = mine and context.attemptNumber() < int(faults.get("faultattempts", 1))
    if mine and not doomed and faults.get("fault") == "hang":
        # Speculation may start this copy before the first attempt hangs: the copy must not win before that.
        wait_for(faults["folder"], "failed")
    for batch in batches:
        yield batch
        rows += batch.num_rows
        if doomed and rows >= int(faults.get("faultrow", 350)) and faults.get("fault"):
            note(faults.get("folder"), "failed", f"{context.partitionId()} {context.attemptNumber()}")
            if faults["fault"] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if faults["fault"] == "exit":
                _exit(3)
            if faults["fault"] == "hang":
                try:
                    wait_for(faults["folder"], "copied")
                except TimeoutError:
                    note(faults["folder"], "uncopied")
                time.sleep(60)  # until Spark ends it
            raise RuntimeError("on purpose")
        if not mine and faults.get("wait") and rows >= 200:
            note(faults["folder"], "waiting")
            wait_for(faults["folder"], faults["wait"])
    if mine and not doomed and faults.get("fault") == "hang":
        note(faults["folder"], "copied", f"{context.partitionId()} {context.attemptNumber()}")


class _Writer(Protocol):
    """The writers that `Faulty` is mixed into."""

    def write(self, iterator: Any) -> Any: ...
    def commit(self, messages: Any, *batch: Any): ...
    def abort(self, messages: Any, *batch: Any): ...


class Faulty(_Writer if TYPE_CHECKING else object):  # type: ignore[misc]
    """Mixed into a writer."""

    faults: dict[str, Any]

    def write(self, iterator):
        folder = self.faults.get("folder")
        try:
            return super().write(failing(iterator, self.faults))
        except BaseException as error:
            note(folder, "ended", type(error).__name__)
            raise

    def abort(self, messages, *batch):
        if self.faults.get("abort") == "never":
            raise RuntimeError("on purpose: no abort")
        super().abort(messages, *batch)
        note(self.faults.get("folder"), "aborted")

    def commit(self, messages, *batch):
        when, folder = self.faults.get("commit"), self.faults.get("folder")
        if when is None or list(Path(str(folder)).glob("crashed-*")):
            return super().commit(messages, *batch)
        note(folder, "crashed")
        if when == "before":
            raise RuntimeError("commit crashed")
        calls = 0

        def one(transport, call):
            nonlocal calls
            if when != "after" and calls >= int(when):
                if self.faults.get("how") is None:
                    raise RuntimeError("commit crashed")
                if not list(Path(str(folder)).glob("killed-*")):
                    note(folder, "killed")
                    kill(folder, self.faults["how"])
            calls += 1
            return transport.call(call)

        def run(transport, steps):
            reply = None
            while True:
                try:
                    step = steps.send(reply)
                except StopIteration as end:
                    return end.value
                if isinstance(step, writes.Pause):
                    writes.pause(step.seconds)
                    reply = None
                elif isinstance(step, writes.Together):
                    reply = [one(transport, call) for call in step.calls]  # a writer may die when a part of them ran
                else:
                    reply = one(transport, step)

        module: Any = writer
        module.run_blocking = run
        try:
            super().commit(messages, *batch)
        finally:
            module.run_blocking = writes.run_blocking
        if "how" not in self.faults:
            raise RuntimeError("commit crashed after it was done")
        return None


class FaultyFrameWriter(Faulty, writer.FrameWriter):
    """Of frames."""


class FaultyStreamWriter(Faulty, writer.StreamWriter):
    """Of streams."""


def faulty(kind, made, faults):
    """The writer that was made, as one that fails."""
    copy = kind.__new__(kind)
    copy.__dict__.update(made.__dict__, faults=faults)
    return copy


class FaultySource(DefaultSource):
    """The format `faulty`."""

    @classmethod
    def name(cls):
        return "faulty"

    def __init__(self, options):
        faults = {name: options[name] for name in FAULTS if name in options}
        super().__init__({name: text for name, text in options.items() if name.lower() not in FAULTS})
        self.faults = faults

    def writer(self, schema, overwrite):
        return faulty(FaultyFrameWriter, super().writer(schema, overwrite), self.faults)

    def streamWriter(self, schema, overwrite):
        return faulty(FaultyStreamWriter, super().streamWriter(schema, overwrite), self.faults)
