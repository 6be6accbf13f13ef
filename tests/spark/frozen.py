"""A data source that records how many objects the garbage collector ignores. Spark's processes import this module."""

import gc

from glidemq_py.spark.writer import FrameWriter
from pyspark_glidemq import DefaultSource
from tests.spark.faults import note

__all__ = ["FrozenSource"]


class FrozenWriter(FrameWriter):
    """Records the number in planning, in each task and in the commit."""

    folder = ""

    def write(self, iterator):
        message = super().write(iterator)
        note(self.folder, "task", str(gc.get_freeze_count()))
        return message

    def commit(self, messages):
        super().commit(messages)
        note(self.folder, "commit", str(gc.get_freeze_count()))


class FrozenSource(DefaultSource):
    """The format `frozen`; option `folder`."""

    @classmethod
    def name(cls):
        return "frozen"

    def __init__(self, options):
        super().__init__({name: text for name, text in options.items() if name != "folder"})
        self.folder = options["folder"]

    def writer(self, schema, overwrite):
        made = FrozenWriter.__new__(FrozenWriter)
        made.__dict__.update(super().writer(schema, overwrite).__dict__, folder=self.folder)
        note(self.folder, "plan", str(gc.get_freeze_count()))
        return made
