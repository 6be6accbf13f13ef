"""Calls that set and read the limits of a queue and of its ordering groups."""

from __future__ import annotations

from typing import NamedTuple

from glidemq_py._core.calls.packing import Call, pack, unpack

__all__ = ["GroupReply", "Setting", "group_info", "hold_group", "limit_group", "limit_queue"]

Setting = tuple[int, int] | int
"""A pair of numbers; 0 = remove the limit; False = leave it unchanged."""


class GroupReply(NamedTuple):
    """Reply of `group_info`; 0 = no such limit."""

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
    """Set the limits of the queue: concurrency, and rate as (jobs, ms); 0 = no limit, False = unchanged."""
    return Call("limit_queue", meta, (pack((concurrency, rate)),), int, repeatable=True)


def limit_group(meta: str, key: str, concurrency: int, rate: Setting, bucket: Setting) -> Call[int]:
    """Set the limits of a group: concurrency, rate as (jobs, ms), bucket as (capacity, refill per s) in millitokens."""
    return Call("limit_group", meta, (pack((key, concurrency, rate, bucket)),), int, repeatable=True)


def hold_group(meta: str, key: str, ms: int, replace: bool) -> Call[int]:
    """Rate limit a group for ``ms`` and return the end (epoch ms). A later end is kept unless ``replace`` is True."""
    return Call("hold_group", meta, (pack((key, ms, int(replace))),), int, repeatable=True)


def group_info(meta: str, key: str) -> Call[GroupReply | None]:
    """Return the current state of a group, or None."""
    return Call("group_info", meta, (key,), _group, repeatable=True)


def _group(reply: bytes) -> GroupReply | None:
    found = unpack(reply)
    return GroupReply(*(int(value) for value in found)) if found else None
