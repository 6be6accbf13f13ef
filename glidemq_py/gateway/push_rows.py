"""Rows of jobs to add, and the limits of groups that are set right before jobs are added or fetched.

Options that were checked and encoded before are not checked and encoded again: the clients of a queue usually add their
jobs with the same options, and only ids, names and data differ. The limits are `groupMaxSize` of jobs, and `group` of
PULL.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from glidemq_py._api.job_queue import Queue
from glidemq_py._core.calls import pieces
from glidemq_py._core.calls.adding import NEW_JOB, Row, encode_row, stored_row
from glidemq_py._core.job_options import NO_OPTIONS, JobOptions
from glidemq_py._core.limits import MAX_COUNT, FairKeyDefaults, RateLimit
from glidemq_py._core.payload import PackedValue, encode_data
from glidemq_py._core.queue_options import entry_of
from glidemq_py._partitions.link import QueueLink
from glidemq_py.gateway.job_ids import JobIds
from glidemq_py.gateway.job_objects import stored_value
from glidemq_py.gateway.push_options import Push
from glidemq_py.gateway.table import Field, Given, Kind, check_nested

GroupSize = tuple[str, int]
"""A group and its maximum size."""

_KNOWN_S: Final = 2.0
_KEPT_GROUPS: Final = 1_000
_TOGETHER: Final = 250

_known: WeakKeyDictionary[Queue, dict[str, tuple[Any, float]]] = WeakKeyDictionary()
"""Per queue and group ("" = each group): the limits that this process has set, and until when not again."""
_Defaults = tuple[int | None, tuple[int, int] | None]

_GROUP: Final = (
    Field("affinity"), Kind.POSITIVE("concurrency", 1, MAX_COUNT), Kind.MAP("limit"),
)  # fmt: skip
_LIMIT: Final = (
    Kind.POSITIVE("max", 1, MAX_COUNT, required=True),
    Kind.POSITIVE("duration", 1, 31_536_000_000, required=True),
)  # fmt: skip


def group_size(given: Given) -> GroupSize | None:
    """Return the maximum size in the fields of a job; None if it has none, or no group."""
    group, size = given["groupId"], given["groupMaxSize"]
    return None if group is None or size is None else (group, size)


async def set_group_sizes(queue: Queue, sizes: Iterable[GroupSize | None]) -> None:
    """Set the maximum sizes of groups, for the jobs of all programs; of two sizes of one group, the last one.

    A size that this process has set in the last seconds is not set again.

    Raises:
        GlideMQConnectionError: If the server cannot be reached.
    """
    wanted = dict(each for each in sizes if each is not None)
    new = [each for each in wanted.items() if not _is_known(queue, *each)]
    for some in pieces(new, _TOGETHER):
        await asyncio.gather(*(queue.fair_keys.set_limits(group, max_backlog=size) for group, size in some))
        for each in some:
            _remember(queue, *each)


async def set_group_defaults(queue: Queue, given: Mapping[Any, Any]) -> None:
    """Set the limits of each group to those of a fetch, for the fetches of all programs; what is missing is no limit.

    Limits that this process has set in the last seconds are not set again.

    Raises:
        CommandError: If a limit is invalid.
        GlideMQConnectionError: If the server cannot be reached.
    """
    concurrency, rate = wanted = _defaults_of(given)
    if _is_known(queue, "", wanted):
        return
    # Nothing is written for a client that gives an empty map, if there are no limits.
    if wanted != (None, None) or (
        "" in _known.get(queue, ()) or await queue.fair_keys.get_defaults() != FairKeyDefaults()
    ):
        await queue.fair_keys.set_defaults(
            concurrency=concurrency or False, rate_limit=False if rate is None else RateLimit(*rate)
        )
    _remember(queue, "", wanted)


def _defaults_of(given: Mapping[Any, Any]) -> _Defaults:
    found = check_nested("group", _GROUP, given)
    limit = found["limit"]
    if limit is None:
        return found["concurrency"], None
    rate = check_nested("group.limit", _LIMIT, limit)
    return found["concurrency"], (rate["max"], rate["duration"])


def forget_group_limits(queue: Queue) -> None:
    """Set all sizes and limits again: the queue was deleted."""
    _known.pop(queue, None)


def _is_known(queue: Queue, group: str, limits: object) -> bool:
    found, until = _known.get(queue, {}).get(group, (None, 0.0))
    return found == limits and time.monotonic() < until


def _remember(queue: Queue, group: str, limits: object) -> None:
    known = _known.setdefault(queue, {})
    if len(known) >= _KEPT_GROUPS:
        known.clear()
    known[group] = limits, time.monotonic() + _KNOWN_S


_KEPT: Final = 500
NAME, _DATA, _OPTS, ID = (NEW_JOB.index(name) for name in ("name", "data", "opts", "id"))
_SAMPLE: Final = "00000000-0000-7000-8000-000000000000"


class _Template(NamedTuple):
    options: JobOptions
    row: Row
    before_id: str
    after_id: str

    def filled(self, link: QueueLink, name: str, data: Any, job_id: str, where: str) -> tuple[Row, JobOptions]:
        """Return the row and the options of a job with these options. Raises those of `encode_data`."""
        row = self.row.copy()
        row[NAME], row[ID] = name, job_id
        row[_DATA] = encode_data(data, link.serializer, link.compression, link.payload_limit, where)
        row[_OPTS] = f"{self.before_id}{job_id}{self.after_id}"
        return row, self.options


_SPECIFIC: Final = frozenset(("cmd", "queue", "reqId", "name", "data"))
"""Fields of a command that are no options of its job."""
_RARE: Final = frozenset((
    "jobId", "customId", "uniqueKey", "dedup", "dependsOn", "tags", "groupId", "durable", "childrenIds", "parentId",
    "debounceId", "sizeLimit", "repeat",
))  # fmt: skip
"""Options that differ from job to job, or need more than a row."""
_MOST_OPTIONS: Final = 8
_MOST_CHARS: Final = 256
_usual: dict[str, _Template] = {}
"""By the options as the client has sent them."""


def usual_row(
    queue: Queue, link: QueueLink, ids: JobIds, given: Given, where: str = "data"
) -> tuple[Row, JobOptions] | None:  # fmt: skip
    """Return the row and the options of a job if others with the same options were checked before; else None.

    Args:
        queue: The queue.
        link: Its connection.
        ids: Makes the id of the job.
        given: The fields of the job, unchecked.
        where: Name of its data in errors.

    Raises:
        GlideMQValidationError: If the data is too large.
    """
    name, key = given.get("name"), _usual_key(given)
    found = None if key is None else _usual.get(key)
    if found is None or name.__class__ is not str or name not in queue._known_names:
        return None
    data = stored_value(given.get("data"))
    if data.__class__ is PackedValue:
        return None  # the readers of the queue are checked first
    job_id = ids.make_known(queue.name)
    return None if job_id is None else found.filled(link, str(name), data, job_id, where)


def _usual_key(given: Given) -> str | None:
    options = {name: value for name, value in given.items() if name not in _SPECIFIC}
    if not options:
        return ""
    if len(options) > _MOST_OPTIONS or not _RARE.isdisjoint(options):
        return None
    key = repr(options)
    return key if len(key) <= _MOST_CHARS else None


def new_row(
    queue: Queue, link: QueueLink, given: Given, push: Push, position: int | None = None
) -> tuple[Row, JobOptions]:  # fmt: skip
    """Return the row of a job, and its options, which need not contain its id; remember usual options.

    Args:
        queue: The queue.
        link: Its connection.
        given: The fields of the job.
        push: The job.
        position: Its position among several, for errors.

    Raises:
        GlideMQValidationError: If an option or the data is invalid.
    """
    (name, data, own), key = push, _usual_key(given)
    if name not in queue._known_names:
        queue._check_name(name)
    where = "data" if position is None else f"jobs[{position}].data"
    if key is None:
        options = _options(queue, push, position)
        return encode_row(link, name, data, options, where), options
    options = _options(queue, (name, data, {**own, "job_id": _SAMPLE}), position)
    before, _, after = options.to_wire_json().partition(_SAMPLE)
    made = _Template(options, stored_row("", "", "", options), before, after)
    filled = made.filled(link, name, data, own["job_id"], where)
    if len(_usual) >= _KEPT:
        _usual.clear()
    _usual[key] = made
    return filled


def _options(queue: Queue, push: Push, position: int | None) -> JobOptions:
    if position is None:
        return queue._options(push[2])
    return entry_of(push, NO_OPTIONS, f"jobs[{position}]")[2]


def with_id(row: Row, job_id: str) -> Row:
    """Return a row with another id in place of one that was made for it."""
    new = row.copy()
    new[ID], new[_OPTS] = job_id, str(row[_OPTS]).replace(str(row[ID]), job_id)
    return new


async def added_rows(link: QueueLink, rows: Sequence[Row]) -> tuple[int, list[str]] | None:
    """Return the time, which is not known, and the ids of rows that were added together; None if they were not added.

    If the first job exists, all were added.

    Raises:
        GlideMQError: If the call failed.
    """
    job_ids = [str(row[ID]) for row in rows]
    return (0, job_ids) if await link.command("EXISTS", link.keys.job(job_ids[0])) else None
