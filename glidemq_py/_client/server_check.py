"""Check the server's configuration when connecting: settings that lose jobs raise an error or log a WARNING.

Sends one INFO per connection of a queue, worker or producer (none for dedicated connections and heartbeats); in a
cluster, to every primary. A finding is logged once per process and server (`run_id`). Missing values, and an INFO that
is not permitted, are logged as DEBUG.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from glide_shared.config import GlideClusterClientConfiguration, ReadFrom
from glide_shared.exceptions import GlideError
from glide_shared.routes import AllPrimaries

from glidemq_py._client.connect_errors import GlideConfig, connection_timeout_s
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.embedded import is_ephemeral
from glidemq_py._core.logs import get_logger
from glidemq_py.errors import ConnectionRejectedError

_log = get_logger(__name__)

_COMMAND: Final = ("INFO", "server", "memory", "persistence", "replication", "cluster")
_OLDEST: Final = {"valkey": (8, 1), "redis": (7, 0)}
_PAGE: Final = "docs/operate/server.md"


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem in a server's configuration.

    Attributes:
        kind: "eviction" and "cluster" are errors, "unknown" is logged as DEBUG, all others as WARNING.
        text: the problem and its remedy.
    """

    kind: str
    text: str


def findings_of(
    info: Mapping[str, str], *, cluster: bool = False, may_be_replica: bool = False, tls: bool = False
) -> Iterator[Finding]:
    """Yield the findings for an INFO reply.

    Args:
        info: the fields of the reply.
        cluster: the connection is to a cluster.
        may_be_replica: reads go to replicas, so the reply may come from a replica.
        tls: the connection uses TLS.
    """
    policy = info.get("maxmemory_policy")
    if policy is None:
        yield Finding("unknown", "INFO has no maxmemory_policy: cannot check whether jobs may be evicted")
    elif policy.startswith("allkeys-"):
        yield Finding("eviction", f"maxmemory-policy is {policy}: a full server deletes jobs; set it to noeviction")
    elif policy != "noeviction":
        yield Finding(
            "volatile",
            f"maxmemory-policy is {policy}: a full server deletes keys that expire (locks, deduplication, streams of "
            "jobs); set it to noeviction",
        )
    append_only = info.get("aof_enabled")
    if append_only is None:
        yield Finding("unknown", "INFO has no aof_enabled: cannot check whether jobs survive a restart")
    elif append_only == "0":
        yield Finding(
            "aof",
            "append-only file is off: a restart loses the jobs added since the last snapshot, or all; set "
            "appendonly to yes (to accept it: add ?allow_no_aof=true to the server's URL)",
        )
    if info.get("role") == "slave" and not may_be_replica:
        yield Finding("replica", "is a replica, and a queue needs the primary; connect to the primary")
    if info.get("cluster_enabled") == "1" and not cluster:
        scheme = "valkeys" if tls else "valkey"
        yield Finding("cluster", f"is a cluster node; use {scheme}+cluster:// instead of {scheme}://")
    name, version = _version(info)
    if version is None:
        yield Finding("unknown", "INFO has no valid version")
    elif version < (oldest := _OLDEST[name]):
        shown = ".".join(map(str, version))
        yield Finding("version", f"{name} {shown} is too old: upgrade to {oldest[0]}.{oldest[1]} or later")


def _version(info: Mapping[str, str]) -> tuple[str, tuple[int, ...] | None]:
    name = "valkey" if "valkey_version" in info else "redis"
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", info.get(f"{name}_version", ""))
    return name, None if found is None else tuple(int(part) for part in found.groups() if part is not None)


async def check_server(client: Any, config: GlideConfig, options: ConnectionOptions | None = None) -> None:
    """Check the servers of an async client. ``options`` is None for a client given by the user.

    Raises:
        ConnectionRejectedError: if a server may evict any key and `allow_eviction` is not set.
        ConnectionRejectedError: if a cluster node was given as a standalone server.
    """
    try:
        async with asyncio.timeout(connection_timeout_s(config)):
            reply = await client.custom_command(list(_COMMAND), *_route(config))
    except (GlideError, OSError) as error:
        _log.debug("server %s: configuration not checked: %s", _name(config), str(error) or "no reply in time")
        return
    _review(config, reply, options)


def _route(config: GlideConfig) -> tuple[AllPrimaries, ...]:
    return (AllPrimaries(),) if isinstance(config, GlideClusterClientConfiguration) else ()


def _review(config: GlideConfig, reply: Any, options: ConnectionOptions | None) -> None:
    replies = cast("Mapping[object, object]", reply) if isinstance(reply, Mapping) else {_name(config): reply}
    for node, text in replies.items():
        info = _fields(text)
        for finding in findings_of(
            info,
            cluster=isinstance(config, GlideClusterClientConfiguration),
            may_be_replica=config.read_from != ReadFrom.PRIMARY,
            tls=bool(config.use_tls),
        ):
            _report(_text(node), info, finding, options)


def _report(node: str, info: Mapping[str, str], finding: Finding, options: ConnectionOptions | None) -> None:
    text = f"server {node}: {finding.text}"
    level = logging.WARNING
    if finding.kind == "cluster":
        raise ConnectionRejectedError(text)
    if finding.kind == "eviction":
        if options is None or not options.allow_eviction:
            where = "'?allow_eviction=true' in the URL or ConnectionOptions(..., allow_eviction=True)"
            if options is None:
                where += ", not with a client of your own"
            raise ConnectionRejectedError(f"{text}, or accept the loss with {where} ({_PAGE})")
        level = logging.DEBUG
    elif finding.kind == "unknown" or (finding.kind == "aof" and _may_lack_aof(info, options)):
        level = logging.DEBUG
    identity = info.get("run_id", node), finding.kind, finding.text if finding.kind == "unknown" else "", level
    if identity not in _reported:
        _reported.add(identity)
        _log.log(level, "%s (%s)", text, _PAGE)


def _may_lack_aof(info: Mapping[str, str], options: ConnectionOptions | None) -> bool:
    if options is not None and options.allow_no_aof:
        return True
    return is_ephemeral(info.get("process_id", ""), info.get("tcp_port", ""))


_reported: set[tuple[str, str, str, int]] = set()
"""Findings already logged by this process."""


def _fields(text: Any) -> dict[str, str]:
    return dict(line.split(":", 1) for line in _text(text).splitlines() if ":" in line)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _name(config: GlideConfig) -> str:
    return ", ".join(f"{address.host}:{address.port}" for address in config.addresses)
