"""Options of a gateway."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from glidemq_py._core.checks import Converted, OptionValue, check_bool, check_int, check_iterable, check_text, option
from glidemq_py._core.keys import DEFAULT_PREFIX, validate_prefix
from glidemq_py._core.times import DAY_MS, Milliseconds, to_ms
from glidemq_py._features.backup.store import check_storage
from glidemq_py._web.clients import check_tokens, require_tokens
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.gateway.addresses import Network, parse_networks

__all__ = ["BACKLOG", "GatewayOptions"]

BACKLOG: Final = 2_048
"""Connections that wait until the gateway accepts them: many clients reconnect at once when it is back."""
_SHARED_PORT: Final = "must not be 0 with several processes (share_port): each would get another port"


def _prefix(option: str, value: str) -> str:
    try:
        return validate_prefix(value)
    except GlideMQValidationError as error:
        raise GlideMQValidationError(option, error.value, error.problem) from None


def _origins(option: str, given: Iterable[str]) -> tuple[str, ...]:
    origins = tuple(check_iterable(option, given, "origins"))
    for each in origins:
        check_text(option, each, maximum=2_048)
        if each != "*" and ("://" not in each or each.endswith("/") or not each.isascii()):
            raise GlideMQValidationError(option, each, "must be origins such as 'https://example.com', or '*'")
    return origins


class GatewayOptions(OptionValue, kw_only=True):
    """Options of a `Gateway`.

    Args:
        host: address to listen on.
        port: port to listen on; 0 = any free port.
        prefix: first part of every key.
        tokens: clients must authenticate with one of these; None disables authentication.
        allow_anonymous: allow a ``host`` other than those of this machine without ``tokens``: every client that
            reaches the gateway may then use the queues.
        max_connections: maximum number of connections; others are closed at once.
        frame_timeout: maximum time from the first to the last byte of a frame, ms or timedelta; then the connection is
            closed. The time in which the gateway does not read the connection does not count.
        max_unsent: maximum size of answers that a client has not read, bytes; then its connection is closed.
        shutdown_timeout: maximum time for closing, ms or timedelta: running commands, the release of fetched jobs, and
            webhooks; at least half a second.
        share_port: let other gateways of this machine listen on the same port; the kernel distributes the connections.
        tls_cert: path of a PEM file with the certificate chain; connections then use TLS. It is read again when it
            changes.
        tls_key: path of a PEM file with the key of the certificate, without a password.
        rate_limit: maximum number of frames of a connection per ``rate_limit_window``; others are answered with an
            error. None = no limit.
        rate_limit_window: length of the window, ms or timedelta.
        max_completed: number of completed jobs of a queue to keep, applied when a client completes a job that has no
            ``removeOnComplete`` of its own; None = all.
        backup: directory or URL such as ``s3://bucket/prefix`` to which all queues are backed up
            (`Queue.backups.create`); None = no backups. It requires the extra ``backup``.
        backup_every: time between the backups of a queue, ms or timedelta.
        backup_keep: number of backups of a queue to keep.
        backup_storage: options of the store, as for `Queue.backups.create`.
        webhook_networks: networks to which webhooks may be sent besides the public ones, such as "10.0.0.0/8".
        webhook_timeout: maximum time of one attempt to deliver a webhook, ms or timedelta.
        webhook_attempts: maximum number of attempts.
        webhook_backoff: time before the second attempt, ms or timedelta; it doubles with each attempt.
        http_port: port of the HTTP API, which has the same host, tokens and certificate; 0 = any free port, None = no
            HTTP API. It requires starlette, uvicorn and wsproto.
        cors_origins: origins whose pages may use the HTTP API, such as ``"https://example.com"``; "*" = any.
        metrics_auth: require a token for ``/prometheus``.
        trusted_proxies: networks of proxies in front of the HTTP API, such as "10.0.0.0/8": ``rate_limit`` counts the
            requests of an address, which is the one that they report in ``X-Forwarded-For``.

    Raises:
        GlideMQValidationError: if an option is invalid. The message never contains a token.
    """

    host: str = option(partial(check_text, maximum=255), default="127.0.0.1")
    port: int = option(partial(check_int, minimum=0, maximum=65_535), default=6_789)
    prefix: str = option(_prefix, default=DEFAULT_PREFIX)
    tokens: Converted[tuple[str, ...] | None, Iterable[str] | None] = option(check_tokens, default=None, repr=False)
    allow_anonymous: bool = option(check_bool, default=False)
    max_connections: int = option(partial(check_int, minimum=1, maximum=1_000_000), default=20_000)
    frame_timeout: Converted[int, Milliseconds] = option(partial(to_ms, minimum=100, maximum=DAY_MS), default=60_000)
    max_unsent: int = option(partial(check_int, minimum=65_536, maximum=2**31), default=67_108_864)
    shutdown_timeout: Converted[int, Milliseconds] = option(partial(to_ms, minimum=0, maximum=DAY_MS), default=30_000)
    share_port: bool = option(check_bool, default=False)
    tls_cert: str | None = option(partial(check_text, maximum=4_096), default=None)
    tls_key: str | None = option(partial(check_text, maximum=4_096), default=None)
    rate_limit: int | None = option(partial(check_int, minimum=1, maximum=10**9), default=None)
    rate_limit_window: Converted[int, Milliseconds] = option(
        partial(to_ms, minimum=100, maximum=DAY_MS), default=60_000
    )
    max_completed: int | None = option(partial(check_int, minimum=1, maximum=2**31 - 1), default=None)
    backup: str | None = option(partial(check_text, maximum=4_096), default=None)
    backup_every: Converted[int, Milliseconds] = option(partial(to_ms, minimum=60_000), default=21_600_000)
    backup_keep: int = option(partial(check_int, minimum=1, maximum=100_000), default=7)
    backup_storage: Mapping[str, str] | None = option(check_storage, default=None, repr=False)
    webhook_networks: Converted[tuple[Network, ...], Iterable[str]] = option(parse_networks, default=())
    webhook_timeout: Converted[int, Milliseconds] = option(partial(to_ms, minimum=100, maximum=300_000), default=10_000)
    webhook_attempts: int = option(partial(check_int, minimum=2, maximum=100), default=8)
    webhook_backoff: Converted[int, Milliseconds] = option(partial(to_ms, minimum=0, maximum=3_600_000), default=1_000)
    http_port: int | None = option(partial(check_int, minimum=0, maximum=65_535), default=None)
    cors_origins: Converted[tuple[str, ...], Iterable[str]] = option(_origins, default=())
    metrics_auth: bool = option(check_bool, default=False)
    trusted_proxies: Converted[tuple[Network, ...], Iterable[str]] = option(parse_networks, default=())

    def _check_given(self) -> None:
        if self.share_port and self.http_port == 0:
            raise GlideMQValidationError("http_port", 0, _SHARED_PORT)
        if self.share_port and self.port == 0:
            raise GlideMQValidationError("port", 0, _SHARED_PORT)
        if (self.tls_cert is None) != (self.tls_key is None):
            missing, given = ("tls_key", "tls_cert") if self.tls_key is None else ("tls_cert", "tls_key")
            raise GlideMQValidationError(missing, None, f"is required with {given}")
        require_tokens(self, [self.host])
