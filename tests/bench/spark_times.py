"""The data source with a clock: notes when its tasks and its commit run. Spark's processes import this module."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from glidemq_py.spark.options import WriteOptions
from glidemq_py.spark.write_schema import plan_write
from glidemq_py.spark.writer import FrameWriter
from pyspark_glidemq import DefaultSource

FILE = "GLIDEMQ_BENCH_TIMES"
"""Environment variable with the path of the file that a save's times are written to."""


class TimedWriter(FrameWriter):
    """Notes the times of a save."""

    def write(self, iterator: Any) -> Any:
        """Write the rows of one task."""
        began, used = time.time(), time.process_time()
        first: list[float] = []

        def rows() -> Iterator[Any]:
            requested = time.time()
            for batch in iterator:
                if not first:
                    first.extend((requested, time.time()))
                yield batch

        message = super().write(rows())
        # A message is pickled with its attributes.
        message.span = (began, time.time())  # type: ignore[attr-defined]
        message.first = tuple(first)  # type: ignore[attr-defined]
        message.cpu = time.process_time() - used  # type: ignore[attr-defined]
        return message

    def commit(self, messages: list[Any]):
        """Commit, and write the times: seconds from the first to the last moment of the tasks, and of the commit.

        ``cpu`` is the CPU time of the tasks' and the commit's processes; ``wait`` the time that the task which had rows
        first waited for them, in which Spark evaluates the frame and serializes the first Arrow batch.
        """
        began, used = time.time(), time.process_time()
        super().commit(messages)
        ended = time.time()
        spans = [message.span for message in messages]
        tasks = max(end for _, end in spans) - min(start for start, _ in spans)
        arrived, requested = min((message.first[::-1] for message in messages if message.first), default=(0.0, 0.0))
        wait = arrived - requested
        cpu = sum(message.cpu for message in messages) + time.process_time() - used
        Path(os.environ[FILE]).write_text(
            json.dumps({"tasks": tasks, "commit": ended - began, "cpu": cpu, "wait": wait})
        )


class TimedSource(DefaultSource):
    """The format `glidemq_timed`."""

    @classmethod
    def name(cls) -> str:
        """Return its name."""
        return "glidemq_timed"

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """Return a writer that notes its times."""
        options = WriteOptions.parse(self.options, streaming=False)
        return TimedWriter(options, plan_write(schema, options), overwrite)
