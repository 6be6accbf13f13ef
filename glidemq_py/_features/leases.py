"""Leases: jobs that are fetched and reported without a worker (docs/learn/leases.md).

Waiting for them is a blocking read in the consumer group that wakes up workers.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast

from glidemq_py._client.runtime import uncancelled
from glidemq_py._client.shared_reads import ReadConnection, open_reader
from glidemq_py._client.transport import Transport
from glidemq_py._core import json_text as json
from glidemq_py._core.calls import call, declared
from glidemq_py._core.calls.working import COMPLETED, COMPLETED_PLAIN, Keep
from glidemq_py._core.keys import QueueKeys, parse_job_id, partition_home
from glidemq_py._core.logs import get_logger
from glidemq_py._core.times import monotonic
from glidemq_py.errors import ClosedError, GlideMQConnectionError, GlideMQError, GlideMQValidationError

_log = get_logger(__name__)

POLL_MS: Final = 850
"""Longest read, as that of workers: jobs that a Node peer adds to a list wake no reader."""
_LATE_S: Final = 0.2
_RETRY_S: Final = 0.02

_orphans: set[asyncio.Task[Any]] = set()


def _keep(task: asyncio.Task[Any]) -> None:
    """Keep a task from being garbage-collected while it runs."""
    _orphans.add(task)
    task.add_done_callback(_orphans.discard)


class WakeUps:
    """The wake-ups of one event loop's fetches from a queue; they take turns.

    Args:
        transport: The queue's connection; the reads have one of their own.
        keys: Keys of the queue.
    """

    def __init__(self, transport: Transport, keys: QueueKeys) -> None:
        self._shared = transport
        self._keys = keys
        self._turn = asyncio.Lock()
        self._reading: ReadConnection | None = None
        self._closed = False

    async def wait(self, seconds: float, due: float | None = None) -> None:
        """Wait until jobs may be ready, at most ``seconds``, or a second at most.

        Args:
            seconds: Remaining seconds of the fetch.
            due: Seconds until a job is due or a limit ends: the wait ends exactly then, if it has not ended before.

        Raises:
            ClosedError: If the queue was closed.
            GlideMQConnectionError: If the server cannot be reached.
        """
        until = monotonic() + (seconds if due is None else min(seconds, due))
        limit = min(until - monotonic(), POLL_MS / 1_000)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit if due is not None else limit + _LATE_S), self._turn:
                await self._read(max(1, int(min(limit, until - monotonic()) * 1_000)))

    async def _read(self, block: int) -> None:
        """Read for ``block`` ms, or until jobs may be ready."""
        self._check_open()
        if self._reading is None:
            opened = await uncancelled(open_reader(self._shared), self._unused)
            try:
                self._check_open()  # it may have been closed meanwhile
            except ClosedError:
                await opened.close()
                raise
            self._reading = opened
        command = (
            "XREADGROUP", "GROUP", "wakers", "w", "COUNT", "1", "BLOCK", str(block), "NOACK",
            "STREAMS", self._keys.stream, self._keys.wake, ">", ">",
        )  # fmt: skip
        try:
            await uncancelled(self._reading.command(*command), self._orphaned)
        except (ClosedError, GlideMQConnectionError):
            self._reading = None
            raise
        except GlideMQError as error:
            # Usually a missing group (after FLUSHALL), which the next fetch creates.
            _log.debug("queue %r: waiting for a wake-up failed: %s", self._keys.name, error)
            await asyncio.sleep(_RETRY_S)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"queue {self._keys.name!r} is closed")

    def _unused(self, opened: ReadConnection) -> None:
        """Close a connection whose fetch was cancelled before it was open."""
        _keep(asyncio.ensure_future(opened.close()))

    def _orphaned(self, reply: Any) -> None:
        """Pass on a wake-up that arrived after its fetch was cancelled."""
        if reply and not self._closed:
            _keep(asyncio.ensure_future(self._wake()))

    async def _wake(self) -> None:
        try:
            await self._shared.command("XADD", self._keys.wake, "NOMKSTREAM", "MAXLEN", "~", "64", "*", "w", "1")
        except GlideMQError as error:
            _log.debug("queue %r: waking up another worker failed: %s", self._keys.name, error)

    async def close(self) -> None:
        """Close the connection; a fetch that waits raises `ClosedError`."""
        self._closed = True
        if self._reading is not None:
            await self._reading.close()


# -- the token of a lease, and calls ------------------------------------------------------------------------

CONSUMER: Final = "leases"
"""Consumer of all leases of a queue (``lua/features/leases/leases.lua``)."""


@declared("leased")
class Leased(NamedTuple):
    """A lease: its job and fencing token, and the end of the job's timeout (epoch ms; 0 = none)."""

    id: str
    entry: str
    fence: int
    processed_on: int
    limit: int


class ExtendReply(NamedTuple):
    """Reply of `leases.extend`."""

    now: int
    statuses: list[int]
    deadlines: list[int]
    """Epoch ms; 0 if the lease is lost."""


class ReleaseReply(NamedTuple):
    """Reply of `leases.release`."""

    released: int
    cursor: str


class EndReply(NamedTuple):
    """Reply of `end_leases`."""

    recovered: list[str]
    """Ids of the jobs that will run again."""
    failed: list[str]
    wait: int
    """Milliseconds until the next lease is over; -1 = none is left."""
    outbox_pending: int
    """1 = there are entries for other queues."""


@call("extend_leases", repeatable=True)
def extend_leases(duration: int, leases: Sequence[Leased]) -> ExtendReply:
    """Extend leases: they end ``duration`` ms from now."""
    ...


@call("release_leases", repeatable=True)
def release_leases(owner: str, cursor: str, quiet: bool) -> ReleaseReply:
    """Release leases of an owner, reading those of the queue from ``cursor`` ('' = the first) on."""
    ...


@call("end_leases", repeatable=True)
def end_leases(quiet: bool) -> EndReply:
    """End leases that are over, at most 100, the oldest first."""
    ...


_VERSION: Final = "l1."
_MAX_CHARS: Final = 4_096
_MAX_NUMBER: Final = 2**53 - 1
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
_ENTRY: Final = re.compile("(?:[0-9]{1,20}-[0-9]{1,20})?")


class LeaseFacts(NamedTuple):
    """What identifies a lease and is needed to report it."""

    id: str
    entry: str
    """Stream entry id, or '' for a job from a list."""
    fence: int
    processed_on: int
    limit: int
    """When the timeout of the job ends, epoch ms; 0 = none."""
    keep: Keep
    """How the job is kept after it completed."""

    @property
    def completion(self) -> int:
        """Kind of the report if the job completes."""
        return COMPLETED


class PlainFacts(LeaseFacts):
    """The same of a job that was fetched as a plain one: its report reads fewer fields of the record.

    A token does not contain the difference.
    """

    __slots__ = ()

    @property
    def completion(self) -> int:
        """Kind of the report if the job completes."""
        return COMPLETED_PLAIN


def encode_token(prefix: str, queue: str, facts: LeaseFacts) -> str:
    """Return the token of a lease of this queue."""
    job_id, entry, fence, processed_on, limit, keep = facts
    plain = job_id + entry
    if keep.__class__ is int and plain.isascii() and plain.replace("-", "").isalnum():  # JSON, without an encoder
        text = f'{_head(prefix, queue)}"{job_id}","{entry}",{fence},{processed_on},{limit},{keep}]'
    else:
        text = json.dumps([[prefix, queue], *facts])
    packed = binascii.b2a_base64(text.encode("utf-8", "surrogatepass"), newline=False)
    return _VERSION + packed.translate(_URL_SAFE).decode().rstrip("=")


@lru_cache(maxsize=1_024)
def _head(prefix: str, queue: str) -> str:
    return f"[{json.dumps([prefix, queue])},"


def decode_token(prefix: str, queue: str, token: object) -> LeaseFacts:
    """Return the lease of a token. The first tokens had no prefix of the queue's keys.

    Raises:
        GlideMQValidationError: If the token is malformed, or of another queue.
    """
    if not isinstance(token, str):
        raise GlideMQValidationError("token", token, f"must be a string, not {type(token).__name__}")
    if len(token) > _MAX_CHARS or not token.startswith(_VERSION):
        raise _malformed(token)
    try:
        padded = token[len(_VERSION) :] + "=" * (-(len(token) - len(_VERSION)) % 4)
        read: Any = json.loads(base64.b64decode(padded.encode("ascii"), b"-_", validate=True).decode("utf-8"))
        owner, job_id, entry, fence, processed_on, limit, keep = read
        its_prefix, name = _pair(prefix, owner)
        valid = all(isinstance(each, str) for each in (its_prefix, name, job_id, entry))
        valid = valid and _ENTRY.fullmatch(entry) is not None
        valid = valid and all(_is_number(each) for each in (fence, processed_on, limit)) and _is_keep(keep)
        facts = LeaseFacts(parse_job_id(job_id), entry, fence, processed_on, limit, _kept(keep)) if valid else None
    except (GlideMQError, binascii.Error, ValueError, TypeError, RecursionError):
        raise _malformed(token) from None
    if facts is None:
        raise _malformed(token)
    if (its_prefix, name) != (prefix, queue):
        mine, other = queue_names(prefix, queue, its_prefix, name)
        raise GlideMQValidationError("token", token, f"must be a token of queue {mine}; it is one of queue {other}")
    return facts


def queue_names(prefix: str, name: str, other_prefix: str, other_name: str) -> tuple[str, str]:
    """Return what to call two queues in a message: their names, with the prefixes if only these differ."""
    name, other_name = (partition_home(each) or each for each in (name, other_name))
    if name != other_name:
        return repr(name), repr(other_name)
    return f"{name!r} (prefix {prefix!r})", f"{other_name!r} (prefix {other_prefix!r})"


def _malformed(token: str) -> GlideMQValidationError:
    return GlideMQValidationError("token", token, "must be the `token` of a lease")


def _pair(prefix: str, owner: Any) -> Any:
    return cast("list[object]", owner) if isinstance(owner, list) else (prefix, owner)


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MAX_NUMBER


def _is_keep(value: object) -> bool:
    if isinstance(value, list):
        values = cast("list[object]", value)
        return len(values) == 2 and all(map(_is_number, values))
    return value in (0, 1) and type(value) is int


def _kept(value: Any) -> Keep:
    if not isinstance(value, list):
        return int(value)
    count, age = cast("list[int]", value)
    return count, age
