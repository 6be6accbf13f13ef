"""The memory of this process, in bunqueue's terms: resident, and heap."""

from __future__ import annotations

from typing import Final, NamedTuple

from glidemq_py._worker.memory import resident_memory

__all__ = ["ProcessMemory", "memory_mb", "process_memory"]

_MIB: Final = 1_048_576


class ProcessMemory(NamedTuple):
    """The memory of a process, bytes.

    Attributes:
        resident: Physical memory, with the code and files that it maps; None if unknown.
        heap_used: Physical memory of its own data: objects, buffers, and stacks of threads; None except on Linux.
        heap_total: The same with what was swapped out.
    """

    resident: int | None
    heap_used: int | None
    heap_total: int | None


def process_memory() -> ProcessMemory:
    """Return the memory of this process."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        used = _bytes(fields["RssAnon"])
        return ProcessMemory(resident_memory(), used, used + _bytes(fields.get("VmSwap", "0 kB")))
    except (OSError, KeyError):
        return ProcessMemory(resident_memory(), None, None)


def memory_mb() -> dict[str, float]:
    """Return what is known of the memory of this process, MiB, by the names of the HTTP API."""
    memory = process_memory()
    sizes = {"heapUsed": memory.heap_used, "heapTotal": memory.heap_total, "rss": memory.resident}
    return {name: round(size / _MIB, 1) for name, size in sizes.items() if size is not None}


def _bytes(text: str) -> int:
    return int(text.split()[0]) * 1_024
