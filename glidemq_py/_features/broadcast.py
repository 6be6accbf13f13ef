"""Broadcasts: subjects, subscriptions, options of messages, and the server calls (``lua/features/broadcast``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, cast

from glidemq_py._core.calls import Argument, Call, call, declared, unpack
from glidemq_py._core.calls.adding import AddReply, Row
from glidemq_py._core.calls.working import (
    ExchangeReply,
    Finished,
    HeartbeatReply,
    ReattachReply,
    RecoverStalledReply,
    Tokens,
)
from glidemq_py._core.checks import check_text
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.keys import JOB_NAME_LENGTH, NAME_LENGTH
from glidemq_py._core.payload import JSON_SERIALIZER, decode_result
from glidemq_py._core.queue_options import Serializer
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import GlideMQValidationError, JobNotFoundError, JobStateError

MAX_PATTERNS: Final = 100
_CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x1f\x7f]")
_MAGIC: Final = re.compile(r"[^\w\s]", re.ASCII)


def match_subject(pattern: str, subject: str) -> bool:
    """Return True if the subject matches: ``*`` matches any one token, a final ``>`` one or more tokens.

    Args:
        pattern: the pattern.
        subject: the subject.

    Raises:
        GlideMQValidationError: the pattern is invalid (such as a ``>`` before its end), or the subject is not a str.
    """
    return _matches(_tokens(pattern), subject)


def compile_subject_matcher(patterns: Iterable[str] | None) -> Callable[[str], bool] | None:
    """Return a function that checks a subject against the patterns, or None (no filter) if there are no patterns.

    Raises:
        GlideMQValidationError: a pattern is invalid.
    """
    compiled = [_tokens(pattern) for pattern in parse_subjects("patterns", patterns)]
    if not compiled:
        return None
    return lambda subject: any(_matches(tokens, subject) for tokens in compiled)


def parse_subjects(option: str, value: Any) -> tuple[str, ...]:
    """Return the validated patterns of a subscription; () = all subjects.

    Raises:
        GlideMQValidationError: a pattern is invalid, or there are too many.
    """
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise GlideMQValidationError(option, value, "must be a list of patterns")
    given: list[Any] = [*value]
    patterns: tuple[str, ...] = tuple(given)
    if len(patterns) > MAX_PATTERNS:
        raise GlideMQValidationError(option, len(patterns), f"must be at most {MAX_PATTERNS} patterns")
    for i, pattern in enumerate(patterns):
        _tokens(pattern, f"{option}[{i}]")
    return patterns


def lua_patterns(patterns: Sequence[str]) -> list[str] | None:
    """Return the patterns as Lua patterns for the server, or None if every subject matches."""
    found: list[str] = []
    for pattern in patterns:
        tokens = _tokens(pattern)
        if tokens == [">"]:
            return None
        words = ["[^.]*" if word == "*" else _MAGIC.sub(r"%\g<0>", word) for word in tokens]
        if tokens[-1] == ">":
            words[-1] = ".*"
        found.append("^" + "%.".join(words) + "$")
    return found or None


def _tokens(pattern: object, option: str = "subject pattern") -> list[str]:
    text = check_text(option, pattern, maximum=JOB_NAME_LENGTH)
    if _CONTROL_CHARACTER.search(text) is not None:
        raise GlideMQValidationError(option, text, "must not contain control characters")
    tokens = text.split(".")
    if ">" in tokens[:-1]:
        raise GlideMQValidationError(option, text, "'>' must be the last token")
    return tokens


def _matches(pattern: list[str], subject: str) -> bool:
    if not isinstance(subject, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise GlideMQValidationError("subject", subject, "must be a str")
    tokens = subject.split(".")
    if pattern[-1] == ">":
        pattern = pattern[:-1]
        if len(tokens) <= len(pattern):
            return False
    elif len(tokens) != len(pattern):
        return False
    return all(word in ("*", token) for word, token in zip(pattern, tokens, strict=False))


_INTERNAL: Final = ("workers", "wakers")
_ENTRY: Final = re.compile(r"[0-9]{1,20}(-[0-9]{1,20})?", re.ASCII)


def check_message_options(options: JobOptions, where: str = "") -> JobOptions:
    """Return the options if a broadcast supports all of them.

    Raises:
        GlideMQValidationError: an option is not supported.
    """
    options.check_place("message", "is not supported by broadcasts: {}", where)
    if options.deduplication is not None and options.deduplication.mode != "throttle":
        raise GlideMQValidationError(
            where + "deduplication.mode", options.deduplication.mode,
            "is not supported by broadcasts, whose messages never finish as a whole; use 'throttle'",
        )  # fmt: skip
    return options


def validate_subscription(name: object, option: str = "subscription") -> str:
    """Return a valid subscription name: 1..256 characters, not blank, no control characters.

    Raises:
        GlideMQValidationError: the name is invalid.
    """
    text = check_text(option, name, maximum=NAME_LENGTH)
    if not text.strip():
        raise GlideMQValidationError(option, text, "must not be blank")
    if _CONTROL_CHARACTER.search(text) is not None:
        raise GlideMQValidationError(option, text, "must not contain control characters")
    if text in _INTERNAL:
        raise GlideMQValidationError(option, text, "is a reserved name")
    return text


def validate_start(value: object, option: str = "start_from") -> str:
    """Return a valid start of a new subscription: "$" (now), "0-0" (the oldest stored message), or an entry id.

    Raises:
        GlideMQValidationError: the start is invalid.
    """
    if value == "$":
        return "$"
    if isinstance(value, str) and _ENTRY.fullmatch(value) is not None:
        return value if "-" in value else value + "-0"
    raise GlideMQValidationError(option, value, "must be '$', '0-0' or the id of a stream entry")


Marks = tuple[str, str]
"""Ids of the last entry of the message stream and of the wake stream."""


@declared("subscription")
class SubscriptionRow(NamedTuple):
    """The progress of one subscription."""

    name: str
    lag: int
    """Number of unread entries; -1 if the server does not track it and it is large."""
    pending: int
    released: int
    last_delivered: str
    consumers: int


class SubscriptionPage(NamedTuple):
    """Some of the subscriptions."""

    rows: list[SubscriptionRow]
    cursor: str
    """Where to continue; '' = the end."""


class _Exchanged(NamedTuple):
    """Reply of `exchange`: that of a worker, and `Marks` after which no message is waiting."""

    now: int
    statuses: list[int]
    jobs: list[Any]
    next_due: int
    flags: int
    dropped: list[list[str]]
    marks: Any


class DeliveryReply(NamedTuple):
    """Reply of `delivery`."""

    exists: int
    record: list[str]
    """Flat fields and values."""
    place: str


def _text(reply: Any) -> str:
    return reply.decode() if isinstance(reply, bytes) else str(reply)


@call("broadcast_publish")
def publish(rows: Sequence[Row], quiet: bool, most: int, age: int) -> AddReply:
    """Add messages, keep only the newest ``most`` (0 = no limit), and delete those older than ``age`` ms (0 = none)."""
    ...


@call("broadcast_exchange")
def _exchange(
    consumer: str, want: int, finished: Sequence[Finished], quiet: bool, no_metrics: bool,
    limiter: tuple[int, int] | None, group: str, patterns: Sequence[str] | None, start: str, idle: str | None,
    tokens: Tokens | None,
) -> _Exchanged:  # fmt: skip
    """Report attempts and fetch messages."""
    ...


def exchange(
    meta: str, consumer: str, want: int, finished: Sequence[Finished], quiet: bool, no_metrics: bool, group: str,
    patterns: Sequence[str] | None, start: str, keep_marks: Callable[[Marks], None],
    limiter: tuple[int, int] | None = None, token: str | None = None, tokens: Tokens | None = None,
) -> Call[ExchangeReply]:  # fmt: skip
    """Report ``finished`` attempts and fetch up to ``want`` messages for the subscription ``group``.

    Other arguments are the same as in `working.exchange`.

    Args:
        patterns: Lua patterns of subjects; None = all.
        start: stream position of the group if it must be created.
        keep_marks: called with the marks of a reply after which no message is waiting.
        token: as ``idle`` in `working.exchange`.
    """
    made = _exchange(meta, consumer, want, finished, quiet, no_metrics, limiter, group, patterns, start, token, tokens)

    def read(reply: bytes) -> ExchangeReply:
        *rest, marks = unpack(reply)
        if marks:
            stream, wake = marks
            keep_marks((stream, wake))
        return ExchangeReply(*rest)

    return Call(made.function, meta, made.args, read, made.repeatable)


@call("broadcast_heartbeat", repeatable=True)
def heartbeat(
    consumer: str, info: str, ttl: int, jobs: Sequence[tuple[str, str, int, int]], group: str
) -> HeartbeatReply:
    """Renew the locks of messages, as `working.heartbeat` does for jobs."""
    ...


@call("broadcast_reattach")
def reattach(
    consumer: str, known: Sequence[str], want: int, quiet: bool, cursor: str, group: str, start: str
) -> ReattachReply:
    """Return messages pending for this consumer whose entries are not among those in ``known``."""
    ...


@call("broadcast_recover_stalled", repeatable=True)
def recover_stalled(
    holder: str, hold: int, lock_duration: int, max_stalled: int, quiet: bool, cursor: str, group: str, grace: int
) -> RecoverStalledReply:
    """Recover stalled messages; for ``hold`` ms only ``holder`` may do it."""
    ...


@call("broadcast_subscribe", read=_text, repeatable=True)
def subscribe(group: str, start: str) -> str:
    """Create a subscription that starts after entry ``start`` ('$' = now), unless it exists; returns its start."""
    ...


@call("broadcast_subscriptions", repeatable=True)
def subscriptions(cursor: Argument[str] = "") -> SubscriptionPage:
    """Return the progress of a page of subscriptions, from ``cursor`` on ('' = from the first)."""
    ...


@call("broadcast_unsubscribe", read=_text, repeatable=True)
def unsubscribe(group: str, force: bool) -> str:
    """Delete a subscription; returns 'ok', 'gone', or 'active' if one of its workers runs and ``force`` is False."""
    ...


@call("broadcast_delivery", repeatable=True)
def delivery(id: str, group: str) -> DeliveryReply:
    """Return the state of a message in a subscription."""
    ...


@call("broadcast_redeliver", read=_text, repeatable=True)
def _redeliver(id: str, group: str, once: str) -> str:
    """Redeliver a message to a subscription that finished it."""
    ...


def redeliver(meta: str, message_id: str, group: str, once: str) -> Call[str]:
    """Redeliver a message to a subscription that finished it; ``once`` is an idempotency key or ''."""
    made = _redeliver(meta, message_id, group, once)
    return made if once else made.once()


DeliveryState = Literal["waiting", "active", "delayed", "completed", "failed"]
_RECORDED = ("delayed", "completed", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A snapshot of a subscription.

    Attributes:
        name: name of the subscription.
        waiting: number of unread stream entries, including those that its subjects skip; None if the server does not
            track the number and it is more than 1,000.
        active: number of messages being processed.
        released: number of messages released by a worker that closed or stalled; they are delivered next.
        last_delivered: id of the last entry read.
        consumers: number of workers that have read for it, possibly including some that have stopped.
    """

    name: str
    waiting: int | None
    active: int
    released: int
    last_delivered: str
    consumers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The state of a message in one subscription.

    Attributes:
        state: "waiting", "active" (or released), "delayed" (until the next attempt), "completed" (or skipped because
            of its subject) or "failed"; None if the state is no longer known.
        attempts_made: number of failed attempts.
        failed_reason: message of the last failure.
        failed_type: exception type of the last failure.
    """

    state: DeliveryState | None
    attempts_made: int = 0
    failed_reason: str | None = None
    failed_type: str | None = None
    _result_text: str | None = field(default=None, repr=False)
    _serializer: Serializer = field(default=JSON_SERIALIZER, repr=False, compare=False)

    @property
    def returnvalue(self) -> Any:
        """The handler's return value; None before the message is completed.

        Raises:
            SerializationError: the serializer cannot decode the stored value.
        """
        return None if self._result_text is None else decode_result(self._result_text, self._serializer)


async def get_subscriptions(link: QueueLink) -> list[Subscription]:
    """Return all subscriptions of a broadcast."""
    rows: dict[str, SubscriptionRow] = {}
    cursor = None
    while cursor != "":
        page = await link.call(subscriptions, cursor or "")
        cursor = page.cursor
        rows.update((row.name, row) for row in page.rows)
    return [
        Subscription(
            name=row.name, waiting=None if row.lag < 0 else row.lag, active=row.pending - row.released,
            released=row.released, last_delivered=row.last_delivered,
            consumers=row.consumers - (row.released > 0),
        )
        for row in rows.values()
    ]  # fmt: skip


async def get_delivery(link: QueueLink, message_id: str, subscription: str) -> Delivery | None:
    """Return the state of a message in a subscription, or None if the message does not exist."""
    reply = await link.call(delivery, message_id, subscription)
    if not reply.exists:
        return None
    record = dict(zip(reply.record[::2], reply.record[1::2], strict=True))
    stored = record.get("state")
    state = stored if stored in _RECORDED else None
    if reply.place == "pending":
        state = "active"
    elif state is None:
        state = {"read": "completed", "unread": "waiting"}.get(reply.place)
    return Delivery(
        state=cast("DeliveryState | None", state), attempts_made=int(record.get("a", "0")),
        failed_reason=record.get("failedReason"), failed_type=record.get("failedType"),
        _result_text=record.get("returnvalue"), _serializer=link.serializer,
    )  # fmt: skip


async def redeliver_message(link: QueueLink, message_id: str, subscription: str, once: str = "") -> None:
    """Deliver a message again to a subscription; ``once`` is an idempotency key or ''. See `Broadcast.redeliver`."""
    answer = await link.call(redeliver, message_id, subscription, once)
    if answer == "gone":
        raise JobNotFoundError(message_id)
    if answer == "no-subscription":
        raise GlideMQValidationError("subscription", subscription, "does not exist")
    if answer not in ("ok", "duplicate"):
        message = f"cannot redeliver message {message_id!r} to subscription {subscription!r}: it is {answer}"
        raise JobStateError(message_id, answer, "redeliver", message)
