"""`Webhooks`: reads events while this process holds the lock, and delivers what any process has read.

The slots for deliveries are divided among the receivers, so that a slow one does not delay the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import random
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from glidemq_py._api.job_queue import Queue
from glidemq_py._client.failures import repeated_level
from glidemq_py._client.transport import Connection, Transport
from glidemq_py._core.logs import RepeatedFailure, get_logger
from glidemq_py._job.job import Job
from glidemq_py._web.clients import RepeatedWarnings
from glidemq_py._worker.worker import Worker
from glidemq_py.errors import GlideMQError
from glidemq_py.gateway.addresses import Network, Target, problem_of, target_of
from glidemq_py.gateway.job_ids import JobIds
from glidemq_py.gateway.names import listed_queues
from glidemq_py.gateway.options import GatewayOptions
from glidemq_py.gateway.table import CommandError
from glidemq_py.gateway.webhook_events import Delivery, EventReading, ReadingLock, wanted_by
from glidemq_py.gateway.webhook_registry import Figures, Webhook, WebhookRegistry, headers_of

_HEAD_BYTES: Final = 65_536
_BODY_BYTES: Final = 65_536
_DRAIN_S: Final = 1.0
_MOST_INTERIM: Final = 10
_MOST_LINES: Final = 200


class WebhookError(GlideMQError):
    """A webhook was not delivered."""


async def post(url: str, headers: Mapping[str, str], body: bytes, allowed: Sequence[Network], timeout_s: float) -> int:
    """Post a body, and return the status, which is 200 to 299.

    The name of the host is resolved, and the request goes to the address that was checked. Redirects are not followed.

    Args:
        url: The URL.
        headers: Headers besides those of HTTP itself.
        body: The body, JSON.
        allowed: Networks besides the public ones to which it may be sent.
        timeout_s: Maximum time, s.

    Raises:
        WebhookError: If the URL is invalid, or the receiver cannot be reached, is in a network that is not allowed, or
            answers with another status.
    """
    try:
        target = target_of(url)
    except CommandError as error:
        raise WebhookError(str(error)) from None
    try:
        async with asyncio.timeout(timeout_s):
            status = await _exchange(target, headers, body, allowed)
    except TimeoutError:
        raise WebhookError(f"{target.authority} did not answer within {timeout_s:g} s") from None
    except (OSError, UnicodeError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise WebhookError(f"{target.authority}: {type(error).__name__}: {error}") from None
    if 300 <= status < 400:
        raise WebhookError(f"{target.authority} answered {status}: redirects are not followed")
    if not 200 <= status < 300:
        raise WebhookError(f"{target.authority} answered {status}")
    return status


async def _checked_addresses(target: Target, allowed: Sequence[Network]) -> list[str]:
    """Return the addresses of the host.

    Raises:
        OSError: If the name cannot be resolved.
        WebhookError: If one of them is in a network that is not allowed.
    """
    addresses = await _resolved(target.host, target.port)
    for each in addresses:
        problem = problem_of(ipaddress.ip_address(each), allowed)
        if problem is not None:
            raise WebhookError(f"{target.host} leads to {each}, and webhooks cannot point to {problem}")
    return addresses


async def _resolved(host: str, port: int) -> list[str]:
    """Return the addresses of a host."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


async def _exchange(target: Target, headers: Mapping[str, str], body: bytes, allowed: Sequence[Network]) -> int:
    reader, writer = await _connect(target, await _checked_addresses(target, allowed))
    try:
        lines = [f"POST {target.path} HTTP/1.1", f"Host: {target.authority}", "Content-Type: application/json",
                 f"Content-Length: {len(body)}", "Connection: close", "User-Agent: glidemq_py-gateway",
                 *(f"{name}: {value}" for name, value in headers.items()), "", ""]  # fmt: skip
        writer.write("\r\n".join(lines).encode("latin-1") + body)
        status = await _status(reader)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_DRAIN_S):  # a receiver that is still writing should not see a reset
                await _drain(reader)
        return status
    finally:
        writer.transport.abort()


async def _connect(target: Target, addresses: Sequence[str]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    problem: OSError = OSError(f"{target.host} has no address")
    for address in addresses:
        try:
            return await asyncio.open_connection(
                address, target.port, limit=_HEAD_BYTES, ssl=_context() if target.is_tls else None,
                server_hostname=target.host if target.is_tls else None,
            )  # fmt: skip
        except OSError as error:
            problem = error
    raise problem


@cache
def _context() -> ssl.SSLContext:
    return ssl.create_default_context()


async def _status(reader: asyncio.StreamReader) -> int:
    """Return the status of the final answer, and read its head."""
    for _ in range(_MOST_INTERIM):
        first = (await reader.readuntil(b"\n")).split(b" ", 2)
        if len(first) < 2 or not first[0].startswith(b"HTTP/1.") or not first[1].strip().isdigit():
            raise WebhookError("the answer is not HTTP/1.1")
        for _ in range(_MOST_LINES):
            if (await reader.readuntil(b"\n")).strip() == b"":
                break
        else:
            raise WebhookError(f"the answer has more than {_MOST_LINES} headers")
        status = int(first[1][:9])
        if status >= 200:
            return status
    raise WebhookError(f"the receiver sent more than {_MOST_INTERIM} interim answers")


async def _drain(reader: asyncio.StreamReader) -> None:
    left = _BODY_BYTES
    while left > 0:
        data = await reader.read(left)
        if not data:
            return
        left -= len(data)


_log = get_logger(__name__)

DELIVERIES: Final = "gateway@webhooks"
"""The queue of the deliveries. Clients cannot add to it: bunqueue allows no such name."""
_IDLE_S: Final = 5.0
_BUSY_S: Final = 1.0
_LOCK_MS: Final = 5_000
_STALLED_MS: Final = 5_000
_MOST_STALLS: Final = 1_000_000
_KEEP_DELIVERED: Final = {"age": 3_600, "count": 100_000}
"""A reader that was paused for an hour does not deliver an event twice."""
_KEEP_FAILED: Final = {"age": 7 * 86_400, "count": 10_000}
_SLOW_S: Final = 1.0
"""Duration of a delivery from which on a receiver is slow, but at most half of the time of an attempt."""
_NOTE_S: Final = 10.0
_LAST_RANK: Final = -1
"""Rank of new messages for receivers that do not answer: those for others are delivered before."""


class Webhooks:
    """The webhooks of a gateway process: ``run()`` until it is cancelled, then ``close()``.

    Args:
        options: Options of the gateway.
        connection: As for `Worker`.
        transport: Connection to the server of the queues.
        open_queue: Returns the open queue with a name.
        ids: Returns the ids of jobs on the wire.
    """

    def __init__(
        self, options: GatewayOptions, connection: Connection, transport: Transport,
        open_queue: Callable[[str], Awaitable[Queue]], ids: JobIds,
    ) -> None:  # fmt: skip
        self.options = options
        self.registry = WebhookRegistry(transport, options.prefix)
        self._connection, self._transport = connection, transport
        self._open_queue, self._ids = open_queue, ids
        self._lock = ReadingLock(transport, options.prefix)
        self._readings: dict[str, EventReading] = {}
        self._worker: Worker[None] | None = None
        self._slots = DeliverySlots(min(_SLOW_S, options.webhook_timeout / 2_000))
        self._noted: dict[str, float] = {}
        """When it was last noted in Valkey that a receiver does not answer, by ``time.monotonic``."""
        self._is_paused = False
        self._failures = RepeatedFailure(_log, "gateway: reading the webhooks")
        self.lost = RepeatedWarnings(_log)
        """Warnings about messages that were not delivered, by webhook. Close it after this object."""
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Look at the webhooks now."""
        self._changed.set()

    async def run(self) -> None:
        """Read and deliver."""
        while True:
            self._changed.clear()
            try:
                pause = await self._look()
            except GlideMQError as error:
                self._failures.failed(error, repeated_level(self._transport, error))
                pause = _BUSY_S
            except Exception:
                _log.exception("gateway: reading the webhooks failed")
                pause = _IDLE_S
            else:
                self._failures.succeeded()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause * random.uniform(0.9, 1.1)):
                    await self._changed.wait()

    async def close(self) -> None:
        """Stop: running deliveries end, and another gateway continues."""
        await self._stop_reading()
        worker, self._worker = self._worker, None
        if worker is not None:
            with contextlib.suppress(GlideMQError):
                await worker.close()

    async def _look(self) -> float:
        """Read the events of the queues that webhooks name. Return when to look again, s."""
        revision = await self.registry.revision()
        webhooks = await self.registry.all()
        self.lost.forget(webhooks)
        if not webhooks:
            await self.close()
            return _IDLE_S
        self._slots.forget(webhooks)
        self._noted = {each: noted for each, noted in self._noted.items() if each in webhooks}
        await self._deliver()
        if not await self._lock.hold():
            await self._stop_reading()
            return _BUSY_S
        await self._read(revision, await self._wanted(webhooks))
        await self.registry.forget_figures(webhooks)
        await self._log_pause()
        return _BUSY_S

    async def _wanted(self, webhooks: Mapping[str, tuple[Webhook, Figures]]) -> dict[str, dict[str, Webhook]]:
        """Return the enabled webhooks per queue."""
        enabled = {webhook_id: webhook for webhook_id, (webhook, _) in webhooks.items() if webhook.enabled}
        names = {webhook.queue for webhook in enabled.values() if webhook.queue is not None}
        if any(webhook.queue is None for webhook in enabled.values()):
            names |= set(await listed_queues(self._transport, self.options.prefix))
        names.discard(DELIVERIES)  # each delivery would cause others
        return {name: wanted_by(name, webhooks) for name in names}

    async def _log_pause(self) -> None:
        """Log that the queue of the deliveries was paused or resumed."""
        is_paused = await (await self._open_queue(DELIVERIES)).is_paused()
        if is_paused != self._is_paused:
            self._is_paused = is_paused
            if is_paused:
                _log.warning("gateway: queue %r: paused; no webhooks are delivered until it is resumed", DELIVERIES)
            else:
                _log.info("gateway: queue %r: resumed; webhooks are delivered again", DELIVERIES)

    async def _read(self, revision: int, wanted: Mapping[str, Mapping[str, Webhook]]) -> None:
        parts: dict[str, tuple[Queue, Mapping[str, Webhook]]] = {}
        for name, webhooks in wanted.items():
            queue = await self._open_queue(name)  # a queue in use is not forgotten
            await queue._plain_link()
            await queue._check_layout()
            parts |= {part.name: (part, webhooks) for part in queue._parts}
        for name in [name for name, reading in self._readings.items() if name not in parts or reading.has_ended]:
            await self._readings.pop(name).close()
        for name, (part, webhooks) in parts.items():
            reading = self._readings.get(name)
            if reading is not None:
                await reading.keep_prepared(always=reading.update(revision, webhooks))
                continue
            reading = self._readings[name] = EventReading(
                part, self._connection, self._transport, self._lock, self._ids, self._add, self.registry
            )
            reading.start(revision, webhooks)

    async def _stop_reading(self) -> None:
        readings, self._readings = self._readings, {}
        await asyncio.gather(*(reading.close() for reading in readings.values()), return_exceptions=True)
        await self._lock.release()

    async def _add(self, deliveries: Sequence[Delivery]) -> None:
        queue = await self._open_queue(DELIVERIES)
        options = self.options
        dead = await self.registry.dead({webhook_id for webhook_id, _, _ in deliveries})
        await queue.add_bulk([
            (message.event, {"webhook": webhook_id, "timestamp": message.timestamp, "body": message.body}, {
                "job_id": message.id_for(webhook_id, name), "ordering": message.order_for(webhook_id, name),
                "attempts": options.webhook_attempts, "remove_on_complete": _KEEP_DELIVERED,
                "remove_on_fail": _KEEP_FAILED,
                "backoff": {"type": "exponential", "delay": options.webhook_backoff, "jitter": 0.2},
                **({"rank": _LAST_RANK} if webhook_id in dead else {}),
            })
            for webhook_id, name, message in deliveries
        ])  # fmt: skip

    async def _deliver(self) -> None:
        """Start to deliver."""
        if self._worker is not None:
            return
        worker: Worker[None] = Worker(
            DELIVERIES, self._post, self._connection, prefix=self.options.prefix, concurrency=SLOTS,
            lock_duration=_LOCK_MS, stalled_interval=_STALLED_MS, max_stalled_count=_MOST_STALLS, events=False,
            metrics=False, log_failures=False,
        )  # fmt: skip
        await worker.start()
        self._worker = worker

    async def _post(self, job: Job) -> str:
        """Deliver a message."""
        content: Mapping[str, Any] = job.data
        webhook_id: str = content["webhook"]
        webhook = await self.registry.get(webhook_id)
        if webhook is None or not webhook.enabled or content["timestamp"] < webhook.since:
            return "dropped: the webhook was removed or disabled"
        delay = self._slots.delay(webhook_id)
        if delay is not None:  # no attempt is counted, and the message keeps its place among those of its job
            job.move_to_delayed(math.ceil(delay * 1_000))
        body = content["body"].encode()
        now_s = int(time.time())
        headers = headers_of(job.id, job.name, content["timestamp"], now_s, body, webhook.secret)
        options = self.options
        try:
            with self._slots.taken(webhook_id):
                status = await post(
                    webhook.url, headers, body, options.webhook_networks, options.webhook_timeout / 1_000
                )
        except WebhookError as error:
            is_last = job.attempts_made + 1 >= options.webhook_attempts
            if is_last:
                text = f"gateway: webhook {webhook_id}: message {job.id} was not delivered: {error}"
                self.lost.warn(webhook_id, text)
            await self.registry.count(webhook_id, ended="failed" if is_last else None)
            await self._note_dead(webhook_id)
            raise
        await self.registry.count(webhook_id, ended="ok")
        return str(status)

    async def _note_dead(self, webhook_id: str) -> None:
        """Let the gateway that reads the events know that a receiver does not answer."""
        now = time.monotonic()
        if self._slots.is_dead(webhook_id) and now - self._noted.get(webhook_id, -_NOTE_S) >= _NOTE_S:
            self._noted[webhook_id] = now
            await self.registry.note_dead(webhook_id)


SLOTS: Final = 100
"""Deliveries of a process at a time."""
_MOST_SLOW: Final = 50
"""Those to slow receivers, all together."""
_FIRST_SHARE: Final = 20
"""Slots of a receiver of which nothing is known."""
_MOST_SHARE: Final = 50
_SLOW_SHARE: Final = 10
_LEAST_DELAY_S: Final = 0.05
_MOST_DELAY_S: Final = 120.0
_WEIGHT: Final = 0.2
"""Weight of the last delivery in the average duration."""


@dataclass(slots=True)
class _Receiver:
    """What is known of a receiver.

    Attributes:
        running: Deliveries to it.
        share: How many it may have.
        duration: Average duration of a delivery, s.
        free_at: When the next slot is free that is not intended for a delayed message.
        is_dead: Whether it did not answer at all.
    """

    running: int = 0
    share: int = _FIRST_SHARE
    duration: float = 0.05
    free_at: float = 0.0
    is_dead: bool = False

    @property
    def is_slow(self) -> bool:
        return self.share <= _SLOW_SHARE


class DeliverySlots:
    """Decides which deliveries start now.

    A receiver that answers fast gets more and more slots, up to half of them. One that is slow keeps a tenth, and one
    that does not answer a single one; slow receivers have at most half of the slots together.

    Args:
        slow_s: Duration of a delivery from which on the receiver is slow, s.
        clock: Returns the time, s.
    """

    def __init__(self, slow_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._slow_s, self._clock = slow_s, clock
        self._receivers: dict[str, _Receiver] = {}
        self._slow_running = 0

    def delay(self, webhook_id: str) -> float | None:
        """Return after which time a message should be tried again, s; None if it may be delivered now."""
        receiver = self._receivers.get(webhook_id)
        if receiver is None:
            return None
        is_full = receiver.is_slow and self._slow_running >= _MOST_SLOW
        if receiver.running < receiver.share and not is_full:
            return None
        now = self._clock()
        receiver.free_at = max(receiver.free_at, now) + receiver.duration / receiver.share
        delay = receiver.free_at - now
        if delay < _MOST_DELAY_S:
            return max(delay, _LEAST_DELAY_S)
        receiver.free_at = now + _MOST_DELAY_S
        return _MOST_DELAY_S * random.uniform(0.5, 1.0)

    @contextlib.contextmanager
    def taken(self, webhook_id: str) -> Generator[None]:
        """Occupy a slot, and learn from the duration and the outcome."""
        receiver = self._receivers.setdefault(webhook_id, _Receiver())
        start, was_slow = self._clock(), receiver.is_slow
        receiver.running += 1
        self._slow_running += was_slow
        is_ok = False
        try:
            yield
            is_ok = True
        finally:
            receiver.running -= 1
            self._slow_running -= was_slow
            self._learn(receiver, self._clock() - start, is_ok=is_ok)

    def is_dead(self, webhook_id: str) -> bool:
        """Return whether the receiver did not answer the last time."""
        receiver = self._receivers.get(webhook_id)
        return receiver is not None and receiver.is_dead

    def forget(self, known: Iterable[str]) -> None:
        """Forget the receivers of webhooks that do not exist any more."""
        kept = set(known)
        for webhook_id in [each for each in self._receivers if each not in kept]:
            if not self._receivers[webhook_id].running:
                del self._receivers[webhook_id]

    def _learn(self, receiver: _Receiver, seconds: float, *, is_ok: bool) -> None:
        receiver.duration += _WEIGHT * (seconds - receiver.duration)
        if seconds < self._slow_s:
            receiver.is_dead = False
            if is_ok:  # a fast refusal takes no slots, but is no reason for more requests
                receiver.share = min(receiver.share + 1, _MOST_SHARE)
                receiver.free_at = min(receiver.free_at, self._clock())
            return
        receiver.is_dead = not is_ok
        if is_ok and receiver.share < _SLOW_SHARE:  # it answers again
            receiver.share += 1
        else:
            receiver.share = max(receiver.share // 2, _SLOW_SHARE if is_ok else 1)
