"""The transport for threads, over valkey-glide-sync: heartbeats, and the blocking API."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from glide_shared.config import ReadFrom
from glide_shared.exceptions import GlideError
from glide_shared.exceptions import TimeoutError as GlideTimeoutError

from glidemq_py._client.blocking_client import create_blocking, glide_sync, resolve_blocking
from glidemq_py._client.call_retry import CallRetry, classify, not_read, translate
from glidemq_py._client.connect import BlockingGlideClient
from glidemq_py._client.connect_errors import (
    LAST_CHANCE_MS,
    REPLACEMENT_PAUSE_S,
    GlideConfig,
    demoted,
    half_open,
    is_replying,
)
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.direct import blocking_nodes, must_leave
from glidemq_py._client.failures import DEFAULT_REQUEST_TIMEOUT_MS, FUNCTION_MISSING, READ_ONLY, Interruptions
from glidemq_py._client.library_loading import load_arguments, loading_failed
from glidemq_py._client.library_source import Library, assemble
from glidemq_py._client.server_check import check_blocking
from glidemq_py._core.calls import Call
from glidemq_py._core.forks import call_in_child, new_lock
from glidemq_py._core.keys import hash_tag
from glidemq_py._core.logs import get_logger
from glidemq_py.errors import ClosedError, GlideMQConnectionError, GlideMQError

if TYPE_CHECKING:
    from glidemq_py._client.direct.blocking import BlockingNodes, BlockingSocket

__all__ = ["ThreadTransport"]

T = TypeVar("T")

_log = get_logger(__name__)


class ThreadTransport:
    """A `BlockingTransport` over one GLIDE client, for any number of threads. Do not use it in an event loop.

    Args:
        config: how to connect.
        library: the rendering of the function library to call.
        client: an existing client, which is never closed here; None creates a client.
        interruptions: record of server outages; shared with connections derived from this one.
        direct: options for direct connections of the calls; None = all calls go through GLIDE.
    """

    def __init__(
        self,
        config: GlideConfig,
        library: Library | None = None,
        *,
        client: BlockingGlideClient | None = None,
        interruptions: Interruptions | None = None,
        direct: ConnectionOptions | None = None,
    ) -> None:
        self.interruptions = Interruptions() if interruptions is None else interruptions
        self.server: Hashable | None = None
        """Identifies the server if connections to it may be shared; see `connect`."""
        self._owned = client is None
        self._client: Any = create_blocking(config) if client is None else client
        self.config = config
        self.library = library or assemble()
        self._names = self.library.full_names
        self._new_batch: Any = glide_sync.ClusterBatch if self.is_cluster else glide_sync.Batch
        self._options = direct
        self._direct = blocking_nodes(direct)
        self._closed = False
        self._turn = new_lock()
        self._under_way = 0
        self._answered = 0
        """Number of calls that had a reply."""
        self._replacing = new_lock()
        self._next_replacement = 0.0
        """Earliest time of the next search for another primary, by ``time.monotonic``."""
        self._retired: list[Any] = []
        """Replaced clients that other threads may still use."""
        call_in_child(self)

    @classmethod
    def connect(
        cls, connection: str | ConnectionOptions | BlockingGlideClient | None, *, check: bool = True
    ) -> ThreadTransport:
        """Return a transport for the `connection` option of a user.

        Args:
            connection: as given by the user.
            check: check the server's configuration.

        Raises:
            GlideMQConnectionError: if the server cannot be reached now.
            ServerConfigurationError: see `check_blocking`.
        """
        config, client, options = resolve_blocking(connection)
        transport = cls(config, client=client, direct=options)
        if options is not None and options.share_clients:
            transport.server = options
        if check:
            try:
                check_blocking(transport, options)
            except BaseException:
                transport.close()
                raise
        return transport

    @classmethod
    def for_options(cls, options: ConnectionOptions) -> ThreadTransport:
        """Return a transport whose server's configuration is not checked. Raises GlideMQConnectionError."""
        config, _, _ = resolve_blocking(options)
        return cls(config)

    def _forked(self) -> None:
        """See `Forkable`: the threads that made the pending calls do not exist here."""
        self._under_way = 0
        self._direct = blocking_nodes(self._options)

    @property
    def is_cluster(self) -> bool:
        """Whether the client is a cluster client."""
        return isinstance(self._client, glide_sync.GlideClusterClient)

    def call(self, call: Call[T]) -> T:
        """See `BlockingTransport.call`."""
        self._enter()
        try:
            started, answered = time.monotonic(), self._answered
            try:
                return call.read(self._run(call))
            except GlideError as error:
                self._check_client(error, answered, call.key)
                return call.read(self._recover(call, error, started))
        finally:
            self._leave()

    def call_all(self, calls: Sequence[Call[T]]) -> list[T]:
        """See `BlockingTransport.call_all`: one wait for all replies instead of one per call, and in order.

        The server may serve other clients between them. After a call that failed and was retried, repeatable calls are
        repeated, so that they run in order. In a cluster, calls of different slots have no order.

        Raises:
            GlideMQError: as `call`, for the first call that fails. Later calls may have been executed.
        """
        if len(calls) == 1:
            return [self.call(calls[0])]
        self._enter()
        try:
            started, answered = time.monotonic(), self._answered
            replies: list[Any]
            try:
                replies = self._run_all(calls)
            except GlideError as error:
                self._check_client(error, answered, calls[0].key)
                replies = [error] * len(calls)
            found: list[T] = []
            failed = False
            for call, reply in zip(calls, replies, strict=True):
                if isinstance(reply, GlideError):
                    failed = True
                    self._check_client(reply)
                    reply = self._recover(call, reply, started)
                elif failed and call.repeatable:
                    found.append(self.call(call))
                    continue
                found.append(call.read(reply))
            return found
        finally:
            self._leave()

    def _recover(self, call: Call[Any], error: GlideError, started: float) -> Any:
        """See `AsyncTransport._recover`."""
        retry = self._retry(call.function, call.repeatable, started, (call.key,))
        refused: GlideMQError | None = None
        while True:
            step = retry.after(error)
            if step is None:
                raise refused or translate(error, self.library) from error
            self._pause(step.pause, error)
            if step.load:
                try:
                    self._load()
                except GlideMQConnectionError as away:  # it cannot be loaded now
                    refused = away
            try:
                return self._run(call)
            except GlideError as again:
                error = again
                self._check_client(error)
                if classify(error) is not FUNCTION_MISSING:
                    refused = None

    def _retry(self, name: str, repeatable: bool, started: float, words: Sequence[str | bytes]) -> CallRetry:
        tags = (hash_tag(word) for word in words) if self.is_cluster else ()
        return CallRetry(
            name, repeatable=repeatable, started=started, limit_ms=self.config.request_timeout,
            interruptions=self.interruptions, tag=next(filter(None, tags), None),
        )  # fmt: skip

    def _pause(self, seconds: float, cause: GlideError) -> None:
        if seconds:
            time.sleep(seconds)
        if self._closed:
            raise ClosedError("the connection was closed") from cause

    def _run(self, call: Call[Any]) -> Any:
        (reply,) = self._run_all((call,))
        if isinstance(reply, GlideError):
            raise reply
        return reply

    def _run_all(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Return the replies to calls that are sent together; some may be GlideErrors."""
        direct = self._direct
        if direct is not None and (len(calls) == 1 or not self.is_cluster or len({call.key for call in calls}) == 1):
            connection = direct.take(calls[0].key)
            if connection is not None:
                return self._run_directly(direct, connection, calls)
        # A batch even for one call: `fcall` wakes a timer thread of GLIDE for every call (a quarter of the round trip),
        # and writes every error to stderr, including that of a missing library.
        batch = self._new_batch(is_atomic=False)
        for call in calls:
            batch.fcall(self._names[call.function], call.keys, list(call.args))
        replies: list[Any] = self._client.exec(batch, raise_on_error=False)
        self._answered += 1
        return replies

    def _run_directly(self, direct: BlockingNodes, connection: BlockingSocket, calls: Sequence[Call[Any]]) -> list[Any]:
        """Return the replies over a connection that this thread has taken; some may be GlideErrors."""
        names = self._names
        try:
            replies = connection.call(
                [(b"FCALL", names[call.function], len(call.keys), *call.keys, *call.args) for call in calls]
            )
            if any(isinstance(reply, GlideError) and must_leave(reply) for reply in replies):
                connection.close()
        finally:
            connection.turn.release()
            if not connection.usable:
                direct.leave(connection)
        return replies

    def _load(self) -> None:
        args, route = load_arguments(self.library, self.is_cluster)
        try:
            if route is None:
                self._client.custom_command(list(args))
            else:
                self._client.custom_command(list(args), route)
        except GlideError as error:
            self._check_client(error)
            failure = loading_failed(error, self.library)
            if failure is not None:
                raise failure from error

    def command(self, *args: str | bytes) -> Any:
        """See `BlockingTransport.command`."""
        self._enter()
        try:
            started, words, answered = time.monotonic(), list(args), self._answered
            try:
                reply = self._client.custom_command(words)
                self._answered += 1
                return reply
            except GlideError as error:
                failed = error
                self._check_client(error, answered, args[min(1, len(args) - 1)])
            retry = self._retry(str(args[0]), False, started, args[1:])
            while True:
                step = retry.after(failed)
                if step is None:
                    raise translate(failed, self.library) from failed
                self._pause(step.pause, failed)
                try:
                    return self._client.custom_command(words)
                except GlideError as again:
                    failed = again
                    self._check_client(failed)
        finally:
            self._leave()

    def send_reads(self, key: str | None, commands: Sequence[Sequence[str | bytes]]) -> list[Any]:
        """See `BlockingTransport.send_reads`."""
        if key is None and self.is_cluster and self.config.read_from != ReadFrom.PRIMARY:
            return [reply for command in commands for reply in self.send_reads(str(command[1]), [command])]
        self._enter()
        try:
            batch = self._new_batch(is_atomic=False)
            for command in commands:
                batch.custom_command(list(command))
            retry = self._retry(str(commands[0][0]), True, time.monotonic(), () if key is None else (key,))
            replies: list[Any]
            while True:
                answered = self._answered
                try:
                    replies = self._client.exec(batch, raise_on_error=False, options=self._pinned(key, 0))
                    self._answered += 1
                    failed = not_read(replies)
                except GlideError as error:
                    self._check_client(error, answered, key or "")
                    replies, failed = [], error
                if failed is None:
                    return [translate(each, self.library) if isinstance(each, GlideError) else each for each in replies]
                step = retry.after(failed)
                if step is None:
                    raise translate(failed, self.library) from failed
                self._pause(step.pause, failed)
        finally:
            self._leave()

    def call_before(
        self, call: Call[T], waits: Sequence[Sequence[str]], block: int, grace: int | None = None
    ) -> tuple[T, list[Any]]:
        """See `Transport.call_before`."""
        self._enter()
        try:
            batch = self._new_batch(is_atomic=False)
            batch.fcall(self._names[call.function], call.keys, list(call.args))
            for wait in waits:
                batch.custom_command(list(wait))
            answered = self._answered
            try:
                options = self._pinned(call.key, block, grace)
                first, *others = self._client.exec(batch, raise_on_error=False, options=options)
                self._answered += 1
            except GlideError as error:
                self._check_client(error, answered, call.key)
                raise translate(error, self.library) from error
            if isinstance(first, GlideError):
                self._check_client(first)
                if classify(first) is not FUNCTION_MISSING:
                    raise translate(first, self.library) from first
                self._load()
                return self.call_before(call, waits, block, grace)
            replies = [translate(each, self.library) if isinstance(each, GlideError) else each for each in others]
            return call.read(first), replies
        finally:
            self._leave()

    def _pinned(self, key: str | None, block: int, grace: int | None = None) -> Any:
        """Return options of a pipeline that may block for ``block`` ms, on the primary of ``key``; None = several."""
        late = self.config.request_timeout or DEFAULT_REQUEST_TIMEOUT_MS
        timeout = block + (late if grace is None else min(late, grace))
        if not self.is_cluster:
            return glide_sync.BatchOptions(timeout=timeout)
        route = None if key is None else glide_sync.SlotKeyRoute(glide_sync.SlotType.PRIMARY, key)
        return glide_sync.ClusterBatchOptions(timeout=timeout, route=route)

    def scan(self, pattern: str) -> Iterator[list[bytes]]:
        """Yield batches of keys that match a glob pattern, from every primary."""
        cursor: Any = cast("Any", glide_sync.ClusterScanCursor)() if self.is_cluster else b"0"
        while True:
            self._enter()
            try:
                cursor, keys = self._client.scan(cursor, match=pattern, count=1000)
            except GlideError as error:
                raise translate(error, self.library) from error
            finally:
                self._leave()
            yield keys
            if cursor.is_finished() if self.is_cluster else cursor == b"0":
                return

    def dedicated(self) -> ThreadTransport:
        """Return a separate connection to the same server, for blocking reads."""
        return ThreadTransport(self.config, self.library, interruptions=self.interruptions)

    def _check_client(self, error: GlideError, answered: int | None = None, key: str | bytes = "") -> None:
        """Replace a client that is half-open or connected to a replica; see `AsyncTransport._check_client`."""
        if not self._owned:
            return
        if isinstance(error, GlideTimeoutError):
            if self._answered == answered:
                self._replace_client("half-open", lambda: self._answered == answered and self._is_half_open(key))
        elif not self.is_cluster and classify(error) is READ_ONLY:
            self._replace_client("demoted", self._may_search)

    def _may_search(self) -> bool:
        now, earliest = time.monotonic(), self._next_replacement
        if now >= earliest:
            self._next_replacement = now + REPLACEMENT_PAUSE_S
        return now >= earliest

    def _is_half_open(self, key: str | bytes) -> bool:
        return is_replying(self.config) and self._is_silent(key)

    def _replace_client(self, reason: str, needed: Callable[[], bool]) -> None:
        """Connect another client, in one thread at a time and if it is still needed."""
        if not self._replacing.acquire(blocking=False):
            return
        try:
            if not needed():
                return
            client = create_blocking(self.config)
        except GlideMQError as failure:
            _log.debug("replacing a client (%s) failed: %s", reason, failure)
            return
        finally:
            self._replacing.release()
        with self._turn:
            self._retired.append(self._client)
            self._client = client
            self._answered += 1  # calls of other threads that time out later must not replace the new client
        self.interruptions.record()
        self.interruptions.count(reason)
        _log.warning("%s", (half_open if reason == "half-open" else demoted)(self.config))

    def _is_silent(self, key: str | bytes) -> bool:
        """See `AsyncTransport._is_silent`."""
        batch = self._new_batch(is_atomic=False)
        batch.custom_command(["EXISTS", key])
        options = glide_sync.ClusterBatchOptions if self.is_cluster else glide_sync.BatchOptions
        try:
            self._client.exec(batch, raise_on_error=False, options=options(timeout=LAST_CHANCE_MS))
        except GlideError as error:
            return isinstance(error, GlideTimeoutError)
        return False

    # GLIDE frees its client even while other threads use it, so the last thread to leave closes it.

    def _enter(self) -> None:
        with self._turn:
            if self._closed:
                raise ClosedError("the connection was closed")
            self._under_way += 1

    def _leave(self) -> None:
        with self._turn:
            self._under_way -= 1
            last = self._closed and self._under_way == 0
            retired: list[Any] = []
            if self._under_way == 0:
                retired, self._retired = self._retired, retired
        for client in retired:
            client.close()
        if last:
            self._disconnect()

    def close(self) -> None:
        """See `BlockingTransport.close`. Pending calls of other threads complete first."""
        with self._turn:
            if self._closed:
                return
            self._closed = True
            last = self._under_way == 0
        if last:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._direct is not None:
            self._direct.close()
        if self._owned:
            self._client.close()
