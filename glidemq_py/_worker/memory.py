"""The physical memory that this process uses."""

from __future__ import annotations

import os
import sys


def resident_memory() -> int | None:
    """Return this process's physical memory in bytes; on systems without /proc its peak. None if unknown."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        pass
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
