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
        arrivals: list[float] = []

        def rows() -> Iterator[Any]:
            for batch in iterator:
                arrivals.append(time.time())
                yield batch

        message = super().write(rows())
        ended = time.time()
        # A message is pickled with its attributes.
        message.span = (began, arrivals[0] if arrivals else ended, ended)  # type: ignore[attr-defined]
        message.cpu = time.process_time() - used  # type: ignore[attr-defined]
        return message

    def commit(self, messages: list[Any]) -> None:
        """Commit, and write the times: seconds from the first to the last moment of the tasks, and of the commit.

        ``cpu`` is the CPU time of the tasks' and the commit's processes; ``wait`` the time until the first task had
        rows, in which Spark starts to serialize them.
        """
        began, used = time.time(), time.process_time()
        super().commit(messages)
        ended = time.time()
        spans = [message.span for message in messages]
        began_tasks = min(start for start, _, _ in spans)
        tasks = max(end for _, _, end in spans) - began_tasks
        wait = min(first for _, first, _ in spans) - began_tasks
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
