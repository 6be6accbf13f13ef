"""Read a queue's keys in the format of the golden files, and list the differences allowed between two writers."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from glidemq_py.testing import RespClient

DATA = Path(__file__).parent / "data"
Snapshot = dict[str, dict[str, Any]]

# docs/reference/data-model.md: what we add to keys and job hashes. Node peers ignore all of it.
OUR_KEYS = re.compile(
    r":(wake|wake-channels|workers|invalidated|list-(active-ids|heartbeats)|stall-watch|stalled-policies|schedulers-[a-z]+"
    r"|lock:[a-z:]+|dedup-expiry|w:.*"
    r"|outbox|waiting-children|children-watch|flows|temporary|results|leases"
    r"|ranked-above|ranked-below|delayed-own|depvals:.*|failure-counts|failure-retries|fair|fair-[a-z]+|fairq:.*"
    r"|batches|control:.*|batch:.*|batch-jobs:.*)$"
)
OUR_FIELDS = frozenset({"appended", "clockSeen",
                        "eid", "fence", "failedType", "stacktrace", "takenBy", "priorityClock", "slot",
                        "scheduledFor", "schedulesRev", "schedulesCursor", "sideKeys", "resultSeq", "resultsId",
                        "resultsKept", "resultsLeft", "resultsSettled", "lease", "features",
                        "failedAttempts", "failureReason", "rank", "rankedAs",
                        "rankClock", "fairKey", "temporaryLimits", "timeline", "jobBatch",
                        "metricsByName", "tellsStarts", "generation", "generations", "parentGeneration"})  # fmt: skip
TIMES = frozenset({"timestamp", "processedOn", "lastActive", "finishedOn", "expireAt", "rateWindowStart",
                   "tbLastRefill"})  # fmt: skip
# The content of a token bucket depends on the time.
MOMENTARY = frozenset({"tbTokens", "tbRefillRemainder"})
# Of the entries of streams.
OUR_ENTRY_FIELDS = frozenset({"plain", "chosen"})


def load(kind: str) -> dict[str, Any]:
    """A golden file."""
    return json.loads((DATA / f"{kind}.json").read_text(encoding="utf-8"))


def snapshot(resp: RespClient, queue: str) -> Snapshot:
    """Every key of a queue, as the golden files record them."""
    return {key: _read(resp, key) for key in sorted(resp.keys(f"glide:{{{queue}}}:*"))}


def _read(resp: RespClient, key: str) -> dict[str, Any]:
    kind = resp.execute("TYPE", key)
    if kind == "hash":
        value: Any = resp.hash(key)
    elif kind == "string":
        value = resp.execute("GET", key)
    elif kind == "list":
        value = resp.execute("LRANGE", key, 0, -1)
    elif kind == "set":
        value = sorted(resp.execute("SMEMBERS", key))
    elif kind == "zset":
        flat = resp.execute("ZRANGE", key, 0, -1, "WITHSCORES")
        value = [[flat[i], float(flat[i + 1])] for i in range(0, len(flat), 2)]
    else:
        entries = resp.execute("XRANGE", key, "-", "+")
        value = {"entries": [[entry, _pairs(fields)] for entry, fields in entries], "groups": []}
    return {"type": kind, "value": value, "ttl_ms": resp.execute("PTTL", key)}


def _pairs(flat: list[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def restore(resp: RespClient, keys: Snapshot, expire_in: int = 0):
    """Write recorded keys to a server, as they were recorded. Keys with a time to live expire ``expire_in`` ms from
    now.
    """
    now = int(resp.execute("TIME")[0]) * 1000
    for key, entry in keys.items():
        value = entry["value"]
        if entry["type"] == "hash":
            if int(value.get("expireAt", 0)) - int(value.get("timestamp", 0)) >= 60_000:
                value = {**value, "expireAt": str(now + expire_in)}
            resp.execute("HSET", key, *[part for pair in value.items() for part in pair])
        elif entry["type"] == "string":
            resp.execute("SET", key, value)
        elif entry["type"] == "list":
            resp.execute("RPUSH", key, *value)
        elif entry["type"] == "set":
            resp.execute("SADD", key, *value)
        elif entry["type"] == "zset":
            for member, score in value:
                resp.execute("ZADD", key, repr(score), member)
        else:
            for entry_id, fields in value["entries"]:
                resp.execute("XADD", key, entry_id, *[part for pair in fields.items() for part in pair])


def comparable(keys: Snapshot) -> dict[str, Any]:
    """Return a snapshot without values that differ per run and without our documented additions."""
    found: dict[str, Any] = {}
    for key, entry in keys.items():
        if OUR_KEYS.search(key) or (key.endswith(":list-active") and entry["value"] == "0"):
            continue
        name = key.partition("}:")[2]
        found[name] = (entry["type"], entry["ttl_ms"], _comparable_value(name, entry))
    return {name: what for name, what in found.items() if what[2] is not None}


def _comparable_value(name: str, entry: dict[str, Any]) -> Any:
    value = entry["value"]
    if name.startswith("metrics:"):
        return sum(int(count) for field, count in value.items() if field.endswith(":c"))
    if entry["type"] == "hash":
        fields = ((field, text) for field, text in value.items() if field.partition(":")[0] not in OUR_FIELDS)
        return {field: _field(field, text) for field, text in fields} or None
    if entry["type"] == "zset":
        return sorted(member for member, _ in value)
    if entry["type"] == "stream":
        # Jobs run concurrently, so the order of entries of different jobs is not guaranteed.
        return Counter(
            tuple(sorted((k, _field(k, v)) for k, v in fields.items() if k not in OUR_ENTRY_FIELDS))
            for _, fields in value["entries"]
        )
    return value


def _field(field: str, text: str) -> Any:
    if field in TIMES:
        assert re.fullmatch(r"1\d{12}", text), f"{field} = {text!r} is no epoch ms"
        return "<time>"
    if field in MOMENTARY:
        assert text.isdigit(), f"{field} = {text!r} is no number of millitokens"
        return "<tokens>"
    if re.fullmatch(r"\d+:1\d{12}", text):
        return text.partition(":")[0] + ":<time>"  # of the dedup hash
    if text.startswith("gz:"):
        return "gz:" + gzip.decompress(base64.b64decode(text[3:])).decode()
    if text[:1] in "{[":
        return json.dumps(json.loads(text), sort_keys=True, ensure_ascii=False)
    return text
