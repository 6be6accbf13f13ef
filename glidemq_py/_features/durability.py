"""Wait until added jobs are durable: one wait of the server for all adds in flight.

``WAITAOF`` and ``WAIT`` block their connection, so they have one of their own. They wait for the last write of their
connection only. Therefore the adds leave marks (``lua/features/durability``), and a function call in the same pipeline
finds and rewrites them before the wait. A mark that is missing means that the server has lost the add meanwhile: it
restarted with older data, or a replica without the add became primary.

`durable_adds` adds jobs with this confirmation; the option ``durable`` is in ``_core/queue_options.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

from glidemq_py._client.runtime import Runtime
from glidemq_py._client.shared_reads import Reservation, claim_read, glide_of
from glidemq_py._client.transport import Transport
from glidemq_py._core.calls import Call, call, pieces
from glidemq_py._core.calls.adding import AddReply
from glidemq_py._core.forks import new_lock
from glidemq_py._core.queue_options import Durability
from glidemq_py.errors import (
    ClosedError,
    DurabilityError,
    GlideMQConnectionError,
    GlideMQError,
    GlideMQValidationError,
    ServerNotReadyError,
)

if TYPE_CHECKING:
    from glidemq_py._client.async_transport import AsyncTransport
    from glidemq_py._client.library_source import Library

_Kind = Literal["disk", "replicas"]

_CONNECTED: Final = re.compile(rb"connected_slaves:(\d+)")

_MAX_MARKS: Final = 1_000
"""Marks per call, as in ``confirm_durable.lua``."""
MARK_S: Final = 600
"""How long a mark lives without a confirmation, seconds, as in ``lua/features/durability``."""
_PAUSE_S: Final = 0.05
"""Pause before the next try after a lost connection, seconds."""
_GRACE_MS: Final = 1_000
"""How much later than its timeout the reply to a wait may come. A server that is down sends none."""
_SHORT_S: Final = 0.05
_SHORT_WAITS: Final = 5
"""After so many waits below `_SHORT_S` seconds, the next one follows its add. With ``appendfsync everysec`` that many
short ones in sequence are improbable."""
_NO_AOF: Final = (
    "the server has no append-only file: set appendonly to yes, or use Durability(disk=False, replicas=...)"
)
_CLOSED: Final = "not confirmed: the queue was closed"
_NO_REPLICA: Final = "the server has no connected replica"


class ConfirmReply(NamedTuple):
    """Reply of `confirm_durable`."""

    found: list[int]
    """1 or 0 per mark."""
    node: str
    """Id of the node of a cluster; empty otherwise."""


@call("confirm_durable", repeatable=True)
def confirm_durable(marks: list[str], keep: int, cluster: bool) -> ConfirmReply:
    """Check which marks exist, and keep them for ``keep`` seconds. Repeatable."""
    ...


class Mark(NamedTuple):
    """The mark of an add."""

    text: str
    deadline: float | None = None
    """When its confirmation must have come, if its wait has begun (`time.monotonic`)."""


class _Pending:
    """An add that waits for its confirmation."""

    __slots__ = ("deadline", "failure", "is_done", "mark", "meta")

    def __init__(self, meta: str, mark: str, deadline: float) -> None:
        self.meta = meta
        self.mark = mark
        self.deadline = deadline
        self.is_done = False
        self.failure = ""

    def end(self, failure: str = "") -> None:
        self.is_done, self.failure = True, failure


def _is_aof_off(error: GlideMQError) -> bool:
    return "appendonly" in str(error)


class _Line:
    """A connection for waits.

    The confirmers of all queues that share a client share it. In a cluster, each confirmer has its own.
    """

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.waiting: list[_Pending] = []
        self.transport: Transport | None = None
        self.users = 0
        self.replicas = 0
        """Replicas that the current wait requires."""
        self.short_waits = 0
        """Number of short waits in sequence."""
        self.reservation: Reservation | None = None

    def note_wait(self, seconds: float) -> None:
        """Record the length of a wait."""
        self.short_waits = self.short_waits + 1 if seconds < _SHORT_S else 0

    def join(self) -> None:
        """Count one user more."""
        self.users += 1

    async def release(self) -> None:
        """Count one user less; close the connection with the last one."""
        self.users -= 1
        transport = None
        if self.users <= 0:
            transport, self.transport = self.transport, None
            reservation, self.reservation = self.reservation, None
            if reservation is not None:
                reservation.release()
        if transport is not None:
            await transport.close()


_Lines = WeakValueDictionary[Durability, _Line]
_lines_of_clients: WeakKeyDictionary[Any, _Lines] = WeakKeyDictionary()
_lock = new_lock()


def _line_of(transport: Transport, durability: Durability) -> _Line:
    glide = glide_of(transport)
    if glide is None or glide.server is None or glide.is_cluster:
        return _Line()
    with _lock:
        lines = _lines_of_clients.setdefault(glide.client_owner, WeakValueDictionary())
        line = lines.get(durability)
        if line is None:
            line = lines[durability] = _Line()
        return line


class Confirmer:
    """Confirms the adds of one queue, in one event loop.

    Confirmers over one client share a connection, and one wait confirms the adds of all their queues. In a
    cluster each has its own, since queues are at different nodes.

    Args:
        transport: the queue's connection; the waits have another one to the same server.
        meta: the queue's declared key.
        runtime: runtime of the code that adds.
        durability: what to wait for.
    """

    def __init__(self, transport: Transport, meta: str, runtime: Runtime, durability: Durability) -> None:
        self._transport = transport
        self._meta = meta
        self._runtime = runtime
        self._durability = durability
        self._kinds: list[_Kind] = ["disk"] if durability.disk else []
        """What to wait for, in this order."""
        if durability.replicas:
            self._kinds.append("replicas")
        self._line = _line_of(transport, durability)
        self._is_user = False
        self._closed = False

    async def ready(self) -> None:
        """Connect on first use, and check that the server can confirm adds.

        Raises:
            GlideMQValidationError: if the server has no append-only file, or no replica for ``replicas="all"``.
            GlideMQConnectionError: if the server cannot be reached.
        """
        if self._line.transport is None or not self._is_user:
            await self._runtime.there(self._ready())

    async def _ready(self) -> None:
        async with self._line.turn:
            await self._connect()

    async def _connect(self) -> None:
        line = self._line
        if not (self._is_user or self._closed):
            self._is_user = True
            line.join()
        if line.transport is not None:
            return
        if self._closed:
            raise ClosedError("the connection was closed")
        glide = glide_of(self._transport)
        if glide is not None and glide.server is not None and line.reservation is None:
            line.reservation = claim_read(glide.server)
        opened = await self._transport.dedicated()
        try:
            for kind in self._kinds:
                for reply in (await self._send(opened, {self._meta: []}, 1, kind))[2]:
                    if isinstance(reply, GlideMQError):
                        is_off = _is_aof_off(reply)
                        raise GlideMQValidationError("durable", self._durability, _NO_AOF) if is_off else reply
        except BaseException:
            await opened.close()
            raise
        line.transport = opened

    async def call(self, call: Call[AddReply], /) -> AddReply:
        """Run an `add_marked`; confirm it in the same pipeline if waits are short.

        The add would block the adds behind it for the time of a long wait. A call in a cluster may be redirected away
        from the connection of the wait. In both cases `confirm` must follow.

        Returns:
            The reply; its results have None instead of a mark if the add is confirmed.
        """
        line, opened = self._line, self._line.transport
        if opened is None or opened.is_cluster or line.short_waits < _SHORT_WAITS or line.users > 1:
            return await self._transport.call(call)
        block = self._durability.timeout
        try:
            began = time.monotonic()
            waits = await self._waits(opened, max(1, block // len(self._kinds)), self._kinds)
            reply, replies = await opened.call_with(call, waits, block)
        except (ServerNotReadyError, GlideMQValidationError):
            return await self._transport.call(call)
        line.note_wait(time.monotonic() - began)
        is_confirmed, until = not self._shortfall("", replies, self._kinds), began + block / 1000
        marked: Any = [
            (None if is_confirmed else mark._replace(deadline=until), result)
            for mark, result in cast("Any", reply.results)
        ]
        return AddReply(reply.now, marked)

    async def confirm(self, mark: Mark) -> None:
        """Wait until the add with this mark is durable.

        Raises:
            DurabilityError: if it is not within the timeout, or if the server has lost the add.
        """
        (failure,) = await self.confirm_all([mark])
        if failure:
            raise DurabilityError(failure)

    async def confirm_all(self, marks: Sequence[Mark]) -> list[str]:
        """Wait until the adds with these marks are durable, for the timeout all together.

        Returns:
            Per mark why it is not confirmed; "" if it is.
        """
        return await self._runtime.there(self._confirm_all(marks))

    async def _confirm_all(self, marks: Sequence[Mark]) -> list[str]:
        deadline = time.monotonic() + self._durability.timeout / 1000
        group = [_Pending(self._meta, mark.text, mark.deadline or deadline) for mark in marks]
        line = self._line
        line.waiting += group
        try:
            while not all(pending.is_done for pending in group):
                async with line.turn:  # the first of the waiting adds confirms all of them
                    if not all(pending.is_done for pending in group):
                        await self._confirm_waiting()
        finally:
            for pending in group:
                line.waiting.remove(pending)
        return [pending.failure for pending in group]

    async def renew(self, marks: Sequence[Mark]) -> None:
        """Keep these marks for another `MARK_S`. One that cannot be renewed counts as lost later."""
        await self._runtime.there(self._renew(marks))

    async def _renew(self, marks: Sequence[Mark]) -> None:
        with contextlib.suppress(GlideMQError):
            for piece in pieces(marks, _MAX_MARKS):
                texts = [mark.text for mark in piece]
                await self._transport.call(confirm_durable(self._meta, texts, MARK_S, False))

    async def _confirm_waiting(self) -> None:
        group = [pending for pending in self._line.waiting if not pending.is_done][:_MAX_MARKS]
        left = min(pending.deadline for pending in group) - time.monotonic()
        marks: dict[str, list[str]] = {}
        for pending in group:
            marks.setdefault(pending.meta, []).append(pending.mark)
        failure, missing = await self._try(marks, max(1, round(left * 1000)))
        now = time.monotonic()
        for pending in group:
            if pending.mark in missing:
                pending.end("the server has lost the job: it restarted with older data, or failed over")
            elif not failure:
                pending.end()
            elif now >= pending.deadline:
                reason, cause, detail = failure.partition(" (")
                pending.end(f"{reason} within {self._durability.timeout} ms{cause}{detail}")
        if failure and not all(pending.is_done for pending in group):
            await asyncio.sleep(_PAUSE_S)

    async def _try(self, marks: dict[str, list[str]], block: int) -> tuple[str, set[str]]:
        """Return why the adds are not confirmed ("" = they are), and the marks that the server does not have.

        marks: per queue, given by its declared key.
        """
        try:
            await self._connect()
            transport = self._line.transport
            assert transport is not None
            began, missing, shortfall = time.monotonic(), set[str](), ""
            for kind in self._kinds:
                left = block - round((time.monotonic() - began) * 1000)
                node, lost, waits = await self._send(transport, marks, max(1, left), kind, _GRACE_MS)
                missing |= lost
                shortfall = shortfall or self._shortfall(node, waits, (kind,))
            self._line.note_wait(time.monotonic() - began)
        except ClosedError:
            for pending in self._line.waiting:
                if pending.meta == self._meta or not self._closed:  # those of others end by their own confirmers
                    pending.end(_CLOSED)
            return _CLOSED, set()
        except (GlideMQConnectionError, GlideMQValidationError) as error:
            return f"not confirmed ({error})", set()
        return shortfall, missing

    def _shortfall(self, node: str, waits: list[Any], kinds: Sequence[_Kind]) -> str:
        """Return what the replies to the waits lack; "" if nothing."""
        for reply in waits:
            if isinstance(reply, GlideMQError):
                return f"not confirmed ({reply})"
        replies = iter(waits)
        if node and next(replies) != node.encode():
            return "not confirmed by the node of the queue's slot"
        if "disk" in kinds:
            primary, _ = next(replies)
            if not primary:
                return "not written to the disk of the primary"
        if "replicas" in kinds and (reached := next(replies)) < self._line.replicas:
            return f"received by {reached} of {self._line.replicas} replicas"
        return ""

    async def _send(
        self, transport: Transport, marks: dict[str, list[str]], block: int, kind: _Kind, grace: int | None = None
    ) -> tuple[str, set[str], list[Any]]:
        """Check the marks of each queue, and wait behind all the checks in the same pipeline.

        Returns:
            The node of a cluster, the missing marks, and the replies to the waits.
        """
        waits = await self._waits(transport, block, (kind,), grace)
        keep = (self._durability.timeout + block) // 1000 + 1
        cluster = transport.is_cluster
        first, *others = [confirm_durable(meta, names, keep, cluster) for meta, names in marks.items()]
        # Only connections of GLIDE are shared by several queues.
        glide = cast("AsyncTransport", glide_of(transport))
        commands = [_command_of(glide.library, made) for made in others]
        reply, replies = await transport.call_with(first, [*commands, *waits], block, grace)
        missing = _missing(next(iter(marks.values())), reply)
        for of_queue, made, found in zip([*marks.values()][1:], others, replies, strict=False):
            if isinstance(found, GlideMQError):
                raise found
            missing |= _missing(of_queue, made.read(found))
        return reply.node, missing, replies[len(others) :]

    async def _waits(
        self, transport: Transport, block: int, kinds: Sequence[_Kind], grace: int | None = None
    ) -> list[list[str]]:
        """Return the commands behind a call; each waits for ``block`` ms at most."""
        durability = self._durability
        waits: list[list[str]] = [["CLUSTER", "MYID"]] if transport.is_cluster else []
        if "disk" in kinds:
            waits.append(["WAITAOF", "1", "0", str(block)])
        if "replicas" in kinds:
            wanted = durability.replicas
            self._line.replicas = await self._count_replicas(transport, grace) if wanted == "all" else wanted
            waits.append(["WAIT", str(self._line.replicas), str(block)])
        return waits

    async def _count_replicas(self, transport: Transport, grace: int | None) -> int:
        call = confirm_durable(self._meta, [], 1, transport.is_cluster)
        _, (reply,) = await transport.call_with(call, [["INFO", "replication"]], 0, grace)
        if isinstance(reply, GlideMQError):
            raise reply
        found = _CONNECTED.search(reply)
        count = int(found[1]) if found else 0
        if not count:
            raise GlideMQValidationError("durable.replicas", "all", _NO_REPLICA)
        return count

    async def close(self) -> None:
        """End the waits of this queue; its adds that still wait fail. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for pending in self._line.waiting:
            if pending.meta == self._meta:
                pending.end(_CLOSED)
        if self._is_user:
            await self._line.release()


def _command_of(library: Library, call: Call[Any]) -> list[Any]:
    """Return a function call as a command."""
    name = library.function(call.function)
    return ["FCALL", name, str(len(call.keys)), *call.keys, *call.args]


def _missing(marks: Sequence[str], reply: ConfirmReply) -> set[str]:
    return {mark for mark, found in zip(marks, reply.found, strict=True) if not found}
