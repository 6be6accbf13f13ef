"""Calls that set and show limits: of a queue, and of its groups."""

from __future__ import annotations

from typing import NamedTuple

from glidemq_py._core.calls.packing import Call, pack, unpack

__all__ = ["GroupReply", "Setting", "group_info", "hold_group", "limit_group", "limit_queue"]

Setting = tuple[int, int] | int
"""A pair of numbers; 0 = none; False = as it is."""


class GroupReply(NamedTuple):
    """Reply of `group_info`; 0 stands for "no such limit"."""

    active: int
    parked: int
    next_seq: int
    concurrency: int
    rate_max: int
    rate_ms: int
    capacity: int
    refill: int
    limited_until: int


def limit_queue(meta: str, concurrency: int, rate: Setting) -> Call[int]:
    """Set what bounds the queue: jobs at a time, and (jobs, ms); 0 = no bound, False = as it is."""
    return Call("limit_queue", meta, (pack((concurrency, rate)),), int, repeatable=True)


def limit_group(meta: str, key: str, concurrency: int, rate: Setting, bucket: Setting) -> Call[int]:
    """Set what bounds a group: jobs at a time, (jobs, ms), (capacity, refill a second) in millitokens."""
    return Call("limit_group", meta, (pack((key, concurrency, rate, bucket)),), int, repeatable=True)


def hold_group(meta: str, key: str, ms: int, replace: bool) -> Call[int]:
    """Let no job of a group begin for ``ms``; when it goes on (epoch ms). A later end stands unless replaced."""
    return Call("hold_group", meta, (pack((key, ms, int(replace))),), int, repeatable=True)


def group_info(meta: str, key: str) -> Call[GroupReply | None]:
    """A group as it is now; None where there is none."""
    return Call("group_info", meta, (key,), _group, repeatable=True)


def _group(reply: bytes) -> GroupReply | None:
    found = unpack(reply)
    return GroupReply(*(int(value) for value in found)) if found else None
