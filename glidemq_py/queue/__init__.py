"""The queue as producers and operators hold it. Running jobs is the worker's business."""

from glidemq_py.queue.queue import Queue

__all__ = ["Queue"]
