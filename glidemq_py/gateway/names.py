"""Names of queues and of their partitions, in the protocol and in this package.

Clients may use a colon in queue names, which is syntax of our keys. It is stored as ``%3A``: the queue ``mail:out`` of
a client is the queue ``mail%3Aout`` of Python and Node workers.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from glidemq_py._client.transport import Transport
from glidemq_py._core.keys import partition_home, validate_queue_name
from glidemq_py._features.queue_list import find_queues
from glidemq_py._partitions.stored import whole_queues
from glidemq_py.errors import GlideMQValidationError

MAX_NAME: Final = 256

_ALLOWED: Final = re.compile(r"[A-Za-z0-9_\-.:]+", re.ASCII)
_TO_ESCAPE: Final = re.compile(r":|%(?=3A|25)")
_ESCAPED: Final = re.compile(r"%(3A|25)")


class CommandError(Exception):
    """A command that is rejected; the message is the ``error`` of the answer."""


class QueueNameError(CommandError):
    """A queue name that no queue can have."""


def check_wire_name(name: object) -> str:
    """Check a name by the rules of the protocol for commands that add or fetch jobs.

    Raises:
        QueueNameError: If the name is invalid.
    """
    if not isinstance(name, str) or not name:
        raise QueueNameError("Queue name is required")
    return _valid_wire_name(name)


@lru_cache(maxsize=4_096)
def _valid_wire_name(name: str) -> str:
    if len(name) > MAX_NAME:
        raise QueueNameError(f"Queue name too long (max {MAX_NAME} characters)")
    if _ALLOWED.fullmatch(name) is None:
        raise QueueNameError("Queue name contains invalid characters")
    return name


@lru_cache(maxsize=4_096)
def engine_name(name: str) -> str:
    """Return the name of a client's queue in this package.

    Raises:
        QueueNameError: If no queue can have this name.
    """
    if not name:
        raise QueueNameError("Queue name is required")
    escaped = _TO_ESCAPE.sub(lambda found: "%3A" if found[0] == ":" else "%25", name)
    if len(name) > MAX_NAME or len(escaped) > MAX_NAME:
        raise QueueNameError(f"Queue name too long (max {MAX_NAME} characters, a colon counts 3)")
    try:
        return validate_queue_name(escaped)
    except GlideMQValidationError:
        raise QueueNameError("Queue name contains invalid characters") from None


def wire_name(name: str) -> str:
    """Return the name of a queue of this package for clients."""
    return _ESCAPED.sub(lambda found: ":" if found[1] == "3A" else "%", name)


MARK: Final = "||"
"""Stands in every id that names a partition; ids that this package makes and new ids of users do not contain it."""


@lru_cache(maxsize=4_096)
def queue_of_part(name: str) -> str:
    """Return the name of the queue that may have a partition of this name; the name itself if it is not reserved."""
    return partition_home(name) or name


async def listed_queues(transport: Transport, prefix: str) -> list[str]:
    """Return the names of the listed queues, without those of partitions.

    Raises:
        GlideMQConnectionError: If the server cannot be reached.
    """
    return sorted(await whole_queues(transport, prefix, await find_queues(transport, prefix)))
