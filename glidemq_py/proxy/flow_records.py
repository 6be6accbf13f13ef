"""The record of a flow that was added by the proxy: its jobs and roots (docs/reference/data-model.md).

It is written after the flow was added. The key that makes it visible is written last. All its keys are in one slot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from glidemq_py._client.transport import Transport
from glidemq_py._core.calls import pieces
from glidemq_py._core.calls.administration import registry_add, registry_set
from glidemq_py._core.job_references import JobRef
from glidemq_py._core.keys import flow_key
from glidemq_py.errors import GlideMQValidationError

__all__ = ["FlowKind", "FlowRecord", "check_flow_id", "forget_flow", "keep_flow", "read_record"]

_MEMBERS_PER_CALL: Final = 1_000
_ID: Final = re.compile(r"[^{}\x00-\x1f\x7f]{1,256}")

FlowKind = Literal["tree", "dag"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRecord:
    """The record of a flow.

    Attributes:
        flow_id: random, unique across queues.
        kind: tree or graph.
        created_at: epoch ms by the server's clock.
        roots: jobs without a parent in the flow.
        jobs: all jobs, roots included; by queue, older ids first.
    """

    flow_id: str
    kind: FlowKind
    created_at: int
    roots: list[JobRef]
    jobs: list[JobRef]


def check_flow_id(flow_id: str) -> str:
    """Return `flow_id` if it is a valid id.

    Raises:
        GlideMQValidationError: if it is not.
    """
    if _ID.fullmatch(flow_id) is None:
        raise GlideMQValidationError("flowId", flow_id, "must be 1 to 256 characters, no braces or control characters")
    return flow_id


async def keep_flow(transport: Transport, prefix: str, record: FlowRecord) -> None:
    """Write a record. Raises the errors of `Transport.command`."""
    for part, refs in (("jobs", record.jobs), ("roots", record.roots)):
        members = [f"{ref.queue}:{ref.id}" for ref in refs]
        key = flow_key(prefix, record.flow_id, cast("Literal['jobs', 'roots']", part))
        for piece in pieces(members, _MEMBERS_PER_CALL):
            await transport.call(registry_add(key, piece))
    meta = flow_key(prefix, record.flow_id, "meta")
    await transport.call(registry_set(meta, {"createdAt": str(record.created_at), "kind": record.kind}))


async def read_record(transport: Transport, prefix: str, flow_id: str) -> FlowRecord | None:
    """Return a record, or None if it does not exist."""
    created, kind = await transport.command("HMGET", flow_key(prefix, flow_id, "meta"), "createdAt", "kind")
    if created is None and kind is None:
        return None
    return FlowRecord(
        flow_id=flow_id,
        kind="dag" if kind == b"dag" else "tree",
        created_at=int(created) if created and created.isdigit() else 0,
        roots=await _refs(transport, flow_key(prefix, flow_id, "roots")),
        jobs=await _refs(transport, flow_key(prefix, flow_id, "jobs")),
    )


async def forget_flow(transport: Transport, prefix: str, flow_id: str) -> None:
    """Delete a record; its jobs are kept."""
    await transport.command(
        "UNLINK", flow_key(prefix, flow_id, "meta"), flow_key(prefix, flow_id, "jobs"),
        flow_key(prefix, flow_id, "roots"),
    )  # fmt: skip


async def _refs(transport: Transport, key: str) -> list[JobRef]:
    cursor, found = "0", set[JobRef]()
    while True:
        reply: Any = await transport.command("SSCAN", key, cursor, "COUNT", str(_MEMBERS_PER_CALL))
        found.update(_parsed(cast("list[bytes]", reply[1])))
        cursor = reply[0].decode()
        if cursor == "0":
            return sorted(found, key=lambda ref: (ref.queue, len(ref.id), ref.id))


def _parsed(members: Iterable[bytes]) -> Iterable[JobRef]:
    for member in members:
        queue, between, job_id = member.decode("utf-8", "replace").partition(":")
        if queue and between and job_id:
            yield JobRef(queue, job_id)
