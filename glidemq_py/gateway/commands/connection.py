"""Commands about the connection of a client: its subscription to the events of a queue, and its workers.

The hash `<prefix>:gateway:workers` has the worker objects of all gateways as JSON, by id. A worker is removed by its
client, by the gateway whose connection to it ends, or after it has not been heard of for `FORGOTTEN_MS`.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from glidemq_py._features.remote_control import STALE_MS, client_workers_key, read_client_worker
from glidemq_py._partitions.link import scan_fields
from glidemq_py.gateway.names import QueueNameError, engine_name
from glidemq_py.gateway.session import Commands, Session
from glidemq_py.gateway.table import JOB, QUEUE, Answer, CommandError, Field, Given, Kind

COMMANDS: Final = Commands()

PROTOCOL_VERSION: Final = 3
CAPABILITIES: Final = ("pipelining", "separate-job-name")
FORGOTTEN_MS: Final = 600_000
_MOST: Final = 2**53 - 1
_MOST_QUEUES: Final = 1_000
_COUNT: Final[Mapping[str, Any]] = {"kind": Kind.INTEGER, "minimum": 0, "maximum": _MOST}


@COMMANDS("Hello", "connection", "")
async def _hello(session: Session, _: Given) -> Answer:
    """Return the version of the protocol."""
    return {
        "protocolVersion": PROTOCOL_VERSION, "capabilities": [*CAPABILITIES], "server": "bunqueue",
        "version": session.state.version,
    }  # fmt: skip


@COMMANDS("Auth", "connection", "", Kind.ANY("token"), is_public=True)
async def _auth(session: Session, given: Given) -> None:
    """Authenticate the connection."""
    token = given["token"]
    if not session.authenticate(token if isinstance(token, str) else ""):
        raise CommandError("Invalid token")


@COMMANDS("Ping", "connection", "GET /ping")
async def _ping(_: Session, __: Given) -> Answer:
    """Return the time of the gateway."""
    return {"data": {"pong": True, "time": int(time.time() * 1_000)}}


@COMMANDS("SubscribeEvents", "events", "", QUEUE)
async def _subscribe(session: Session, given: Given) -> None:
    """Send the events of a queue from now on; a connection has one subscription, which this replaces."""
    await session.state.subscribe(session.notify, given["queue"])


@COMMANDS("UnsubscribeEvents", "events", "", Kind.ANY("queue"))
async def _unsubscribe(session: Session, given: Given) -> None:
    """End the subscription."""
    session.state.unsubscribe(session.notify)


def _key(session: Session) -> str:
    return client_workers_key(session.state.options.prefix)


def _now() -> int:
    return time.time_ns() // 1_000_000


async def _put(session: Session, worker: Mapping[str, Any]) -> None:
    await session.state.transport.command("HSET", _key(session), worker["id"], json.dumps(worker))


@COMMANDS(
    "RegisterWorker",
    "workers",
    "POST /workers",
    Field("name", maximum=256),
    Kind.TEXTS("queues"),
    Kind.INTEGER("concurrency", 1, 1_000_000, default=1),
    Field("workerId", minimum=1, maximum=256),
    Field("hostname", maximum=256),
    Field("pid", default=0, **_COUNT),
    Kind.ANY("startedAt"),
)
async def _register(session: Session, given: Given) -> Answer:
    """Register a worker of the client, until its connection ends."""
    worker_id = given["workerId"] or str(uuid.uuid4())
    if len(given["queues"] or ()) > _MOST_QUEUES:
        raise CommandError(f"queues must have at most {_MOST_QUEUES} names")
    now = _now()
    worker: dict[str, Any] = {
        "id": worker_id, "name": given["name"] or worker_id, "queues": given["queues"] or [],
        "served": list(_engine_names(given["queues"] or ())),
        "concurrency": given["concurrency"], "hostname": given["hostname"] or "unknown", "pid": given["pid"],
        "registeredAt": now, "lastSeen": now, "activeJobs": 0, "processedJobs": 0, "failedJobs": 0, "currentJob": None,
    }  # fmt: skip
    session.workers.add(worker_id)
    await _put(session, worker)
    answer = {"workerId": worker_id, **worker, "status": "active"}
    del answer["id"], answer["served"]
    return {"data": answer}


def _engine_names(queues: Iterable[str]) -> Iterator[str]:
    for name in queues:
        with contextlib.suppress(QueueNameError):  # no queue has this name
            yield engine_name(name)


@COMMANDS("UnregisterWorker", "workers", "DELETE /workers/{workerId}", Field("workerId", required=True))
async def _unregister(session: Session, given: Given) -> Answer:
    """Remove a worker."""
    session.workers.discard(given["workerId"])
    if not await session.state.transport.command("HDEL", _key(session), given["workerId"]):
        raise CommandError("Worker not found")
    return {"data": {"removed": True}}


@COMMANDS(
    "Heartbeat",
    "workers",
    "POST /workers/{id}/heartbeat",
    JOB,
    Field("activeJobs", **_COUNT),
    Field("processed", **_COUNT),
    Field("failed", **_COUNT),
)
async def _heartbeat(session: Session, given: Given) -> Answer:
    """Store that a worker is alive, and its figures."""
    found = read_client_worker(await session.state.transport.command("HGET", _key(session), given["id"]))
    if found is None:
        raise CommandError("Worker not found")
    changes = {
        name: given[field]
        for name, field in (("activeJobs", "activeJobs"), ("processedJobs", "processed"), ("failedJobs", "failed"))
        if given[field] is not None
    }
    await _put(session, {**found, **changes, "lastSeen": _now()})
    return {"data": {"ok": True}}


@COMMANDS(
    "ListWorkers",
    "workers",
    "GET /queues/{queue}/workers",
    Field("queue", maximum=256),
    shown=("workers",),
    is_flat=True,
)
async def _list(session: Session, given: Given) -> Answer:
    """Return the workers of the clients of all gateways, or of a queue."""
    listed, stats = await list_workers(session)
    if given["queue"] is not None:
        listed = [worker for worker in listed if given["queue"] in worker["queues"]]
    return {"data": {"workers": listed, "stats": stats}}


async def list_workers(session: Session) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return the workers of all gateways, and their sums."""
    now, key, transport = _now(), _key(session), session.state.transport
    workers: dict[str, dict[str, Any]] = {}
    gone: list[bytes] = []
    async for worker_id, text in scan_fields(transport, key):
        found = read_client_worker(text)
        if found is None or now - found["lastSeen"] > FORGOTTEN_MS:
            gone.append(worker_id)
            continue
        found.pop("served", None)
        status = "active" if now - found["lastSeen"] <= STALE_MS else "stale"
        workers[found["id"]] = {**found, "status": status, "uptime": max(0, now - found["registeredAt"])}
    if gone:
        await transport.command("HDEL", key, *gone)
    listed = sorted(workers.values(), key=lambda worker: (worker["registeredAt"], worker["id"]))
    stats = {
        "total": len(listed), "active": sum(worker["status"] == "active" for worker in listed),
        "totalProcessed": sum(worker["processedJobs"] for worker in listed),
        "totalFailed": sum(worker["failedJobs"] for worker in listed),
        "activeJobs": sum(worker["activeJobs"] for worker in listed),
        "concurrencySlots": sum(worker["concurrency"] for worker in listed),
    }  # fmt: skip
    return listed, stats
