"""Fetched jobs, from the reply of the server to their objects on the wire; and those that clients have not reported.

The jobs of a queue usually have the same options, and only the ids in them differ. What follows from the options is
therefore computed once per text of options (`_Shape`). All other jobs take the path of `Queue.fetch`.
"""

from __future__ import annotations

import struct
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from glidemq_py._api.job_queue import Queue
from glidemq_py._api.lease import Lease
from glidemq_py._api.lease_exchange import FetchOptions, facts_of
from glidemq_py._core import json_text as json
from glidemq_py._core.calls.working import FETCHED_JOB, Keep
from glidemq_py._core.calls.working import FetchedJob as FetchedRow
from glidemq_py._core.payload import JSON_SERIALIZER, decode_data
from glidemq_py._features.leases import LeaseFacts, PlainFacts, encode_token
from glidemq_py._job.run import Run
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import SerializationError
from glidemq_py.gateway.job_ids import queue_number
from glidemq_py.gateway.job_objects import job_object
from glidemq_py.gateway.slices import VALUE_PARTS
from glidemq_py.gateway.values import PortableMap, packed_portable, packed_value, portable
from glidemq_py.telemetry.spans import CONTEXT_START

_KEPT: Final = 500
_MOST_CHARS: Final = 1_024
"""Length of options whose shape is kept."""
_MOST_PREPARED: Final = 16_384
"""Length of the data of jobs that are packed before a client fetches them."""
_ID, _ENTRY, _FENCE, _NAME, _DATA, _OPTS, _ADDED, _ATTEMPTS, _PRIORITY = map(
    FETCHED_JOB.index,
    ("id", "entry", "fence", "name", "data", "opts", "timestamp", "attempts_made", "priority"),
)
_LENGTHS: Final = (_ATTEMPTS, len(FETCHED_JOB))
_NEVER_RUN: Final = ["0", False, False]
"""Failed attempts, progress and stalls of a job that has not run before."""
_DIGITS: Final = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_NUMBER: Final = b"0" * 10
"""Ten digits, which may be an integer of more than 32 bits, with every digit as 0."""
_MARKS: Final = ("gz:", "mp:")
_TIMES: Final = ("createdAt", "runAt", "startedAt", "lastHeartbeat")
_OWN: Final = frozenset(("id", "name", "data", *_TIMES))
"""Members of the object that differ from those of other jobs with the same options."""
_PACKED_ID, _PACKED_NAME, _PACKED_DATA = map(packed_value, ("id", "name", "data"))
_PACKED_TIMES: Final = [packed_value(name) + b"\xcb" for name in _TIMES]
"""Names, each with the byte that precedes a float."""
_TIMES_LAYOUT: Final = struct.Struct(">" + "".join(f"{len(name)}sd" for name in _PACKED_TIMES))
_UNREADABLE: Final = object()
"""In place of data that cannot be decoded."""


def _pack_times(added: float, run_at: float, now: float) -> bytes:
    """Return the packed members `_TIMES`."""
    first, second, third, last = _PACKED_TIMES
    return _TIMES_LAYOUT.pack(first, added, second, run_at, third, now, last, now)


class _Shape(NamedTuple):
    """Facts shared by all jobs with equal options."""

    members: dict[str, Any]
    """Their objects, in which the members that differ are those of the first job."""
    head: bytes
    """Beginning of their packed objects, before the members that differ."""
    rest: bytes
    """The packed members that do not differ."""
    delay: int
    timeout: int
    """Milliseconds; 0 = none."""
    lock: int | None
    """Longest duration of their locks, ms."""
    keep: Keep
    is_simple: bool
    """See `Fetched`."""


_shapes: dict[tuple[str, str, Any], _Shape] = {}
"""By queue, options without the id, and priority."""


class Fetched:
    """A fetched job.

    Attributes:
        number: The number of its queue in its id; None if it is not known.
        facts: What identifies its lease.
        lock_ms: Duration of its lock.
        expires_at: When its lock expires, epoch ms of the server's clock.
        is_simple: Whether it certainly has no group: it can return to its place as if it had not been fetched.
    """

    __slots__ = (
        "_lease", "_link", "_now", "_options", "_prepared", "_queue", "_row", "_shape", "expires_at", "facts",
        "is_simple", "lock_ms", "number",
    )  # fmt: skip

    def __init__(
        self, queue: Queue, link: QueueLink, row: FetchedRow, now: int, options: FetchOptions, shape: _Shape,
        number: int | None,
    ) -> None:  # fmt: skip
        self.number = number
        self.is_simple = shape.is_simple
        self._queue, self._link, self._row, self._now, self._options = queue, link, row, now, options
        self._shape: _Shape | None = shape
        self._lease: Lease[Any, Any] | None = None
        self._prepared: tuple[bytes, str] | None = None
        """Its packed object with its own id, and its token."""
        limit = now + shape.timeout if shape.timeout else 0
        kind = PlainFacts if len(row) == _LENGTHS[0] else LeaseFacts
        self.facts = kind(row[_ID], row[_ENTRY], row[_FENCE], now, limit, shape.keep)
        self.lock_ms = options.lock_duration if shape.lock is None else min(shape.lock, options.lock_duration)
        expiry = now + self.lock_ms
        self.expires_at = min(expiry, limit) if limit else expiry

    @classmethod
    def of_run(
        cls, queue: Queue, run: Run, options: FetchOptions, *, is_simple: bool = False
    ) -> Fetched:  # fmt: skip
        """Return a job that has run before, or is not usual in another way."""
        found = object.__new__(cls)
        found._queue, found._shape, found.number, found._prepared = queue, None, None, None
        found.is_simple = is_simple
        found.facts = facts_of(run)
        found._lease = Lease(queue, found.facts, options, run)
        own = run.options.lock_duration
        found.lock_ms = options.lock_duration if own is None else min(own, options.lock_duration)
        found.expires_at = found._lease.expires_at
        return found

    @property
    def id(self) -> str:
        """Its id in its queue."""
        return self.facts.id

    @property
    def size(self) -> int:
        """Length of its data as stored."""
        return len(self._row[_DATA]) if self._shape is not None else len(self.lease.job._data_text or "")

    @property
    def queue_name(self) -> str:
        """Name of its queue, or of its partition."""
        return self._queue.name

    def prepare(self) -> None:
        """Make its packed object and its token now, if it is a usual job: a client will fetch it soon."""
        if self._shape is not None and self.size <= _MOST_PREPARED:
            self._prepared = self.packed(self.facts.id), self.token

    @property
    def token(self) -> str:
        """Token of its lease."""
        if self._prepared is not None:
            return self._prepared[1]
        return encode_token(self._queue.options.prefix, self._queue.name, self.facts)

    @property
    def lease(self) -> Lease[Any, Any]:
        """Its lease."""
        if self._lease is None:
            self._lease = Lease(self._queue, self.facts, self._options, Run(self._link, [*self._row], self._now, None))
        return self._lease

    def object(self, job_id: str) -> dict[str, Any]:
        """Return its object on the wire, with this id.

        Raises:
            JobDataError: If the serializer cannot decode the stored data.
        """
        shape = self._shape
        data = _UNREADABLE if shape is None else self._data()
        if shape is None or data is _UNREADABLE:
            return job_object(self.lease.job, job_id)
        times = dict(zip(_TIMES, self._times(shape), strict=True))
        return PortableMap(shape.members | {"id": job_id, "name": self._row[_NAME], "data": data} | times)

    def packed(self, job_id: str) -> bytes:
        """Return its object on the wire, with this id, as MessagePack.

        Raises:
            JobDataError: If the serializer cannot decode the stored data.
            RecursionError: If the data is nested too deeply. ValueError: Likewise.
        """
        if self._prepared is not None and job_id == self.facts.id:
            return self._prepared[0]
        shape = self._shape
        data = _UNREADABLE if shape is None else self._data()
        if shape is None or data is _UNREADABLE:
            return packed_value(job_object(self.lease.job, job_id))
        added, run_at, now, _ = self._times(shape)
        return b"".join((
            shape.head, _PACKED_ID, packed_portable(job_id), _PACKED_NAME, packed_portable(self._row[_NAME]),
            _PACKED_DATA, packed_portable(data), _pack_times(added, run_at, now), shape.rest,
        ))  # fmt: skip

    def _data(self) -> Any:
        """Return its data; `_UNREADABLE` if reading the job raises the error."""
        text, serializer = self._row[_DATA], self._link.serializer
        if serializer is JSON_SERIALIZER and not text.startswith(_MARKS):
            try:
                data = json.loads(text)
            except SerializationError:
                return _UNREADABLE
            has_long = _LONG_NUMBER in text.encode("utf-8", "surrogatepass").translate(_DIGITS)
            return portable(data) if has_long else data
        try:
            return portable(decode_data(text, serializer))
        except SerializationError:
            return _UNREADABLE

    def _times(self, shape: _Shape) -> tuple[float, float, float, float]:
        """Return the values of `_TIMES`."""
        added, now = float(self._row[_ADDED]), float(self._now)
        run_at = max(added, min(added + shape.delay, now)) if shape.delay else added  # or it was promoted
        return added, run_at, now, now


def fetched_of(
    queue: Queue, link: QueueLink, row: FetchedRow, now: int, options: FetchOptions
) -> Fetched:  # fmt: skip
    """Return the fetched job of a row of a reply."""
    job_id, opts = row[_ID], row[_OPTS]
    number, is_plain = queue_number(job_id), len(row) == _LENGTHS[0]
    is_usual = (
        number is not None and (is_plain or _has_never_run(row)) and isinstance(row[_ADDED], str)
        and row[_ADDED].isdecimal() and not opts.startswith(CONTEXT_START)
    )  # fmt: skip
    if not is_usual:
        return Fetched.of_run(queue, Run(link, row, now, None), options, is_simple=is_plain)
    key = (queue.name, opts.replace(job_id, "", 1), "0" if is_plain else row[_PRIORITY])
    shape = _shapes.get(key)
    if shape is None:
        shape = _shape_of(link, row, now)
        if len(opts) <= _MOST_CHARS:
            if len(_shapes) >= _KEPT:
                _shapes.clear()
            _shapes[key] = shape
    return Fetched(queue, link, row, now, options, shape, number)


def _has_never_run(row: FetchedRow) -> bool:
    return len(row) == _LENGTHS[1] and row[_ATTEMPTS:_PRIORITY] == _NEVER_RUN and not any(row[_PRIORITY + 1 :])


def _shape_of(link: QueueLink, row: FetchedRow, now: int) -> _Shape:
    run = Run(link, [*row], now, None)
    facts, opts = facts_of(run), run.job.opts
    run.job._data_text = None
    members = portable(job_object(run.job, row[_ID]))
    delay = opts.get("delay")
    rest = {name: value for name, value in members.items() if name not in _OWN}
    packed = VALUE_PARTS.chunk(rest, is_first=False, is_portable=True)
    return _Shape(
        members, VALUE_PARTS.begin(members), packed, delay if isinstance(delay, int) else 0,
        facts.limit - now if facts.limit else 0, run.options.lock_duration, facts.keep,
        members.get("groupId") is None,
    )  # fmt: skip


DEFAULT_LOCK_MS: Final = 30_000
"""Duration of the lock of a job whose client has not chosen one."""

FRESH_S: Final = 1.0
"""How long after a fetch a renewal of its lock is answered from memory, unless the lock is short."""
_FRESH_PART: Final = 1 / 3
"""Part of a short lock for which this is so: it began before its reply arrived, and its client renews it in time."""
_MARGIN_S: Final = 60.0
_ENDED_KEPT: Final = 10_000
"""Reported jobs that are remembered."""


@dataclass(slots=True, eq=False)
class Held:
    """A fetched job, which a client may report or renew.

    Attributes:
        id: Its id on the wire.
        queue: Name of its queue, or partition.
        facts: What identifies its lease.
        token: Token of its lease.
        lock_ms: Duration of its lock if this process knows it, else the default.
        connection: The session that fetched it.
        expires_at: When the lock expires unless it is renewed, epoch ms of the server's clock.
        is_owned: Whether the client has the token, because it named an owner.
        is_kept: Whether the job stays locked if the connection is lost.
        fresh_until: Until when renewals of its lock are answered from memory, monotonic seconds.
        forget_at: When this process forgets it, monotonic seconds.
    """

    id: str
    queue: str
    facts: LeaseFacts
    token: str
    lock_ms: int
    connection: object = None
    expires_at: int = 0
    is_owned: bool = True
    is_kept: bool = True
    fresh_until: float = 0.0
    forget_at: float = 0.0

    @property
    def is_timed_out(self) -> bool:
        """Whether the timeout of the job has passed."""
        return 0 < self.facts.limit <= time.time() * 1_000

    def is_of(self, token: str | None) -> bool:
        """Return whether a client may report the job with this token.

        One that differs is of another attempt, also if the client of this attempt has none.
        """
        return token == self.token or (not token and not self.is_owned)


class HeldJobs:
    """Fetched jobs by id. Those whose locks have expired are forgotten, so they cannot accumulate."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, Held] = OrderedDict()
        self._ended: OrderedDict[str, str] = OrderedDict()
        """Tokens of the jobs that were reported last."""

    def __len__(self) -> int:
        return len(self._jobs)

    def add(
        self, fetched: Iterable[tuple[str, Fetched, str]], connection: object, *, is_owned: bool, is_kept: bool
    ) -> list[Held]:  # fmt: skip
        """Remember jobs, given their ids, themselves and their tokens."""
        now, jobs, added = time.monotonic(), self._jobs, list[Held]()
        while jobs:
            oldest = next(iter(jobs))
            if jobs[oldest].forget_at > now:
                break
            del jobs[oldest]
        for job_id, job, token in fetched:
            lock_s = job.lock_ms / 1_000
            jobs.pop(job_id, None)
            held = jobs[job_id] = Held(
                job_id, job.queue_name, job.facts, token, job.lock_ms, connection, job.expires_at, is_owned, is_kept,
                now + min(FRESH_S, lock_s * _FRESH_PART), now + lock_s + _MARGIN_S,
            )  # fmt: skip
            added.append(held)
        return added

    def find(self, job_id: str) -> Held | None:
        """Return the job with this id, or None."""
        return self._jobs.get(job_id)

    def fresh(self, job_id: str, token: str | None, duration: int | None, now: float) -> Held | None:
        """Return the job if it was fetched so recently that its lock need not be renewed on the server; else None.

        The caller then sets `Held.is_kept`: the job stays locked if the connection is lost.

        Args:
            job_id: The id.
            token: Token of the lease, if the client has given it.
            duration: Of the lock, ms, if the client has given it.
            now: Monotonic seconds.
        """
        held = self._jobs.get(job_id)
        if held is None or now >= held.fresh_until or (token and token != held.token):
            return None
        return held if duration is None or duration == held.lock_ms else None

    def renewed(self, job_id: str, token: str | None, duration: int | None) -> None:
        """Note that the lock was extended: the job stays locked if the connection is lost."""
        held = self._jobs.get(job_id)
        if held is not None and token in (None, "", held.token):
            held.is_kept = True
            held.forget_at = time.monotonic() + (duration or held.lock_ms) / 1_000 + _MARGIN_S
            self._jobs.move_to_end(job_id)

    def has_ended(self, job_id: str, token: str | None) -> bool:
        """Return whether the job was reported with this token: there is no lock to renew.

        Clients send heartbeats for jobs that they have reported meanwhile.
        """
        return token is not None and self._ended.get(job_id) == token

    def ended(self, reported: Iterable[Held]) -> None:
        """Forget jobs that were reported."""
        jobs, ended = self._jobs, self._ended
        for job in reported:
            job_id, token = job.id, job.token
            ended[job_id] = token
            held = jobs.get(job_id)
            if held is not None and held.token == token:
                del jobs[job_id]
        for _ in range(len(ended) - _ENDED_KEPT):
            ended.popitem(last=False)

    def take(self, connection: object) -> list[Held]:
        """Forget the jobs of a lost connection that are to be released, and return them; others may be reported."""
        taken: list[Held] = []
        for job_id, held in list(self._jobs.items()):
            if held.connection is connection:
                if held.is_kept:
                    held.connection = None
                else:
                    taken.append(self._jobs.pop(job_id))
        return taken
