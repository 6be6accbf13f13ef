"""`Gateway`: starts, listens and closes. Its certificate is read again when its files change."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import ssl
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

from glidemq_py._api.flow_producer import FlowProducer
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.shared_clients import SharedClient
from glidemq_py._client.transport import URL_VARIABLE, Connection, ConnectionSource, open_transport
from glidemq_py._core.logs import get_logger
from glidemq_py.errors import (
    ClosedError,
    ConnectionRejectedError,
    GlideMQConnectionError,
    GlideMQValidationError,
    show_value,
)
from glidemq_py.gateway.backups import Backups
from glidemq_py.gateway.connection import Connection as ClientConnection
from glidemq_py.gateway.job_ids import JobIds
from glidemq_py.gateway.job_objects import LIMIT
from glidemq_py.gateway.options import BACKLOG
from glidemq_py.gateway.state import GatewayState
from glidemq_py.gateway.webhooks import Webhooks

if TYPE_CHECKING:
    from glidemq_py.gateway.http_api import GatewayHttpServer

__all__ = ["LOOK_S", "Gateway", "ServerCertificate"]

_log = get_logger(__name__)

_RELEASE_S: Final = 1.0
"""Part of the time for closing that is kept for what follows the running commands, but at most a quarter."""
_LEAST_CLOSE_S: Final = 0.5
_HANDSHAKE_S: Final = 10.0
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 5.0
"""Between two tries to reach the server of the queues at the start."""


def _without_polling(connection: Connection) -> Connection:
    """Return a connection that does not spin for replies: that takes the processor from the clients of a gateway."""
    url = os.environ.get(URL_VARIABLE) if connection is None else connection
    if not isinstance(url, str) or "busy_poll=" in url:
        return connection
    return replace(ConnectionOptions.from_url(url), busy_poll=False)


class Gateway(GatewayState):
    """Serve clients of bunqueue's protocol: ``async with Gateway(url, port=6789) as gateway``.

    A gateway keeps only connections, so any number of them may serve the same queues.

    Args:
        connection: As for `Queue`: a URL, `ConnectionOptions`, an existing GLIDE client, or None. A URL that does not
            contain ``busy_poll`` means ``busy_poll=false`` here.
        **options: Fields of `GatewayOptions`.

    Attributes:
        port: The port it listens on, once it is started.
        http_port: The port of the HTTP API, once it is started; None without one.

    Raises:
        GlideMQValidationError: If an option is invalid.
    """

    def __init__(self, connection: Connection = None, **options: Any) -> None:
        super().__init__(connection, **options)
        self._certificate: ServerCertificate | None = None
        if self.options.tls_cert is not None and self.options.tls_key is not None:
            self._certificate = ServerCertificate(self.options.tls_cert, self.options.tls_key)
        self.port = self.options.port
        self.http_port = self.options.http_port
        self._http: GatewayHttpServer | None = None
        self._backups: Backups | None = None
        if self.options.backup is not None:
            self._backups = Backups(self.options, self.queue, self.backup_figures)
        self._duties: tuple[asyncio.Task[None], ...] = ()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Connect to the server of the queues, and listen.

        Waits while that server cannot be reached. The HTTP API is open already: `/ready` has the status 503.

        Raises:
            ConnectionRejectedError: If the server of the queues rejects the connection.
            OSError: If the address cannot be used.
            ClosedError: If the gateway was closed.
        """
        self._connection = _without_polling(self._connection)
        loop = asyncio.get_running_loop()
        try:
            if self.options.http_port is not None and not self._is_closing:
                self._http = self._open_http()
                self.http_port = self._http.port
            self._client = await self._connect()
            transport = await open_transport(self._client)
            self.flows = FlowProducer(self._client, prefix=self.options.prefix)
            self.flows._payload_limit = LIMIT
            self.ids = JobIds(transport, self.options.prefix, self.queue)
            self.webhooks = Webhooks(self.options, self._connection, transport, self.queue, self.ids)
            self._transport = transport
            self._server = await self._listen(loop)
        except BaseException:
            if self._http is not None:
                await self._http.close(0)
            await self._close_client()
            raise
        self.port = self._server.sockets[0].getsockname()[1]
        self._duties = (
            asyncio.create_task(self._repeat()), asyncio.create_task(self.webhooks.run()),
            asyncio.create_task(self.deadlines.watch(transport)),
        )  # fmt: skip
        if self._backups is not None:
            self._duties += (asyncio.create_task(self._backups.run(transport)),)
        if self._certificate is not None:
            self._duties += (asyncio.create_task(self._watch_certificate()),)

    async def _connect(self) -> ConnectionSource:
        pause = _FIRST_PAUSE_S
        while not self._is_closing:
            try:
                return await SharedClient.open(self._connection)
            except ConnectionRejectedError:
                raise
            except GlideMQConnectionError as error:
                jittered = pause * random.uniform(0.5, 1.5)
                _log.warning("gateway: cannot start yet: %s; retrying in %.1f s", error, jittered)
            await asyncio.sleep(jittered)
            pause = min(pause * 2, _LAST_PAUSE_S)
        raise ClosedError("the gateway is closed")

    async def _listen(self, loop: asyncio.AbstractEventLoop) -> asyncio.Server:
        host = self.options.host
        try:
            return await loop.create_server(
                lambda: ClientConnection(self), host, self.options.port, backlog=BACKLOG,
                reuse_port=True if self.options.share_port else None,
                ssl=None if self._certificate is None else self._certificate.context,
                ssl_handshake_timeout=None if self._certificate is None else _HANDSHAKE_S,
            )  # fmt: skip
        except socket.gaierror as error:
            raise socket.gaierror(error.errno, f"option 'host' = {show_value(host)}: {error.strerror}") from None

    def _open_http(self) -> GatewayHttpServer:
        try:
            from glidemq_py.gateway.http_api import GatewayHttpServer
        except ImportError:
            problem = 'requires starlette, uvicorn and wsproto: pip install "glidemq-py[gateway]"'
            raise GlideMQValidationError("http_port", self.options.http_port, problem) from None
        context = None if self._certificate is None else self._certificate.context
        return GatewayHttpServer(self, self.options, context)

    async def close(self) -> None:
        """Stop listening, wait for running commands, release fetched jobs, and close all connections. Idempotent.

        All of it takes ``shutdown_timeout`` at most, but half a second if that is shorter. Tasks that have not ended by
        then are cancelled: jobs that were not released stay locked until their locks expire.
        """
        if self._is_closing:
            return
        self._is_closing = True
        for duty in self._duties:
            duty.cancel()
        if self._server is not None:
            self._server.close()
        grace = self.options.shutdown_timeout / 1_000
        deadline = asyncio.get_running_loop().time() + max(grace, _LEAST_CLOSE_S)
        try:
            async with asyncio.timeout_at(deadline):
                await self._close_parts(grace - min(_RELEASE_S, grace / 4))
        except TimeoutError:
            _log.warning(
                "gateway: not all was closed within %g s; jobs may stay locked until their locks expire", grace
            )
            for connection in self._open():
                connection.abort()
            for hub in self.hubs.values():
                hub.abort()
            for task in self._tasks:
                task.cancel()
        self._is_closed = True
        self.warnings.close()
        if self._transport is not None:
            self.webhooks.lost.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAST_CLOSE_S):
                if self._transport is not None:
                    await self.ids.chosen.close()
                    await self.flows.close()
                await self._close_client()

    async def _close_parts(self, grace: float) -> None:
        """Close all but the connection; ``grace``: time for running commands, s."""
        draining = self._open()
        http = () if self._http is None else (self._http.close(grace),)
        await asyncio.gather(*http, *(each.drain(grace) for each in draining))
        for each in draining:
            each.release()
        while self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.gather(*self._duties, return_exceptions=True)
        if self._transport is not None:
            await self.webhooks.close()
        self._is_closed = True
        await asyncio.gather(*(read.close() for read in self._reads.values()))
        await asyncio.gather(*(self._close_queue(queue) for queue in self._queues.values()), return_exceptions=True)
        self._queues.clear()

    def _open(self) -> list[ClientConnection]:
        return [each for each in self.clients if isinstance(each, ClientConnection)]

    async def __aenter__(self) -> Self:
        """Start the gateway."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the gateway."""
        await self.close()

    @property
    def needs_server(self) -> bool:
        """Whether it uses the server of ``GLIDEMQ_URL``, or a private one."""
        return self._connection is None

    def reload_certificate(self) -> bool:
        """Read the files of the certificate again; return True if it was replaced. New connections use it."""
        return self._certificate is not None and self._certificate.reload(always=True)

    async def _watch_certificate(self) -> None:
        assert self._certificate is not None, "started with a certificate only"
        while True:
            await asyncio.sleep(LOOK_S)
            self._certificate.reload()

    async def _close_client(self) -> None:
        if self._transport is not None:
            await self._transport.close()
        if isinstance(self._client, SharedClient):
            await self._client.close()


LOOK_S: Final = 10.0
"""Interval of looking for changed files."""


class ServerCertificate:
    """A certificate chain and its key, in PEM files.

    Args:
        certificate: Path of the chain, that of the server first.
        key: Path of the key, without a password.

    Attributes:
        context: For a listening socket. New connections use the certificate that was read last.

    Raises:
        GlideMQValidationError: If the files cannot be read, or do not fit each other.
    """

    def __init__(self, certificate: str, key: str) -> None:
        self._certificate = certificate
        self._key = key
        self._changed_at = self._times()
        self.context = self._opened()

    def reload(self, *, always: bool = False) -> bool:
        """Read the files again if they have changed; return True if the certificate was replaced.

        Invalid files are logged, and the present certificate stays.
        """
        times = self._times()
        if times == self._changed_at and not always:
            return False
        self._changed_at = times
        try:
            self._opened()  # both files are complete and fit each other
            self.context.load_cert_chain(self._certificate, self._key, _no_password)
        except (GlideMQValidationError, OSError) as error:
            _log.error("gateway: the certificate was not replaced: %s", error)
            return False
        _log.info("gateway: read the certificate %s again", self._certificate)
        return True

    def _times(self) -> tuple[int, int]:
        return _time_of(self._certificate), _time_of(self._key)

    def _opened(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        for option, path in (("tls_cert", self._certificate), ("tls_key", self._key)):
            if not os.access(path, os.R_OK):
                raise GlideMQValidationError(option, path, "is not a readable file")
        try:
            context.load_cert_chain(self._certificate, self._key, _no_password)
        except (OSError, ValueError) as error:
            problem = f"is not a PEM certificate that fits the key {self._key!r}: {error}"
            raise GlideMQValidationError("tls_cert", self._certificate, problem) from None
        return context


def _no_password() -> str:
    """Let a key with a password be an error; otherwise OpenSSL would ask for it."""
    return ""


def _time_of(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
