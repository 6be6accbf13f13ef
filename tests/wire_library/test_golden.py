"""Compare the records of the wire library with those of a Node producer, field by field."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from glidemq_py.testing import RespClient
from tests.wire_library.support import ADD_ARGS, WireQueue, as_dict

DATA = Path(__file__).resolve().parents[1] / "golden" / "data"
OURS = {"eid"}
"""Fields that we add to a job's hash (docs/reference/wire-library.md)."""

ADDED = ["plain", "delayed", "attempts", "customId", "customIdDup", "prioritized", "delayedPriority", "lifo", "ttl",
         "ordering", "group", "groupRate", "tokenBucket", "removeOnComplete", "timeout", "gzip"]  # fmt: skip
DEDUPLICATED = ["dedupSimple", "dedupThrottle", "dedupDebounce"]


def golden(kind: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((DATA / f"{kind}.json").read_text(encoding="utf-8"))
    return content


def recorded_jobs(content: dict[str, Any], base: str) -> list[dict[str, str]]:
    """The job hashes of one queue in the order of their ids."""
    pattern = re.compile(re.escape(base) + r":job:([^:]+)")
    found = [(key, value["value"]) for key, value in content["added"].items() if pattern.fullmatch(key)]
    return [value for _, value in sorted(found, key=lambda item: (len(item[0]), item[0]))]


def arguments(job: dict[str, str]) -> dict[str, object]:
    """Named arguments of addJob as the client makes them from the options of a recorded job."""
    opts = json.loads(job["opts"])
    ordering = opts.get("ordering", {})
    rate, bucket = ordering.get("rateLimit", {}), ordering.get("tokenBucket", {})
    return {
        "name": job["name"], "data": job["data"], "opts": job["opts"], "timestamp": job["timestamp"],
        "delay": opts.get("delay", 0), "priority": opts.get("priority", 0), "attempts": opts.get("attempts", 0),
        "ordering": ordering.get("key", ""), "concurrency": ordering.get("concurrency", 0),
        "rate_max": rate.get("max", 0), "rate_duration": rate.get("duration", 0),
        "capacity": 1000 * bucket.get("capacity", 0), "refill": 1000 * bucket.get("refillRate", 0),
        "cost": 1000 * opts.get("cost", 0), "ttl": opts.get("ttl", 0), "id": opts.get("jobId", ""),
        "lifo": int(opts.get("lifo", False)),
    }  # fmt: skip


def value_of(resp: RespClient, key: str) -> Any:
    """A key's content in the form of the golden files; entry ids and our own fields left out."""
    kind = resp.execute("TYPE", key)
    if kind == "hash":
        value = resp.hash(key)
        return {field: text for field, text in value.items() if field not in OURS} if ":job:" in key else value
    if kind == "zset":
        flat = resp.execute("ZRANGE", key, 0, -1, "WITHSCORES")
        return [[member, float(score)] for member, score in zip(flat[::2], flat[1::2], strict=True)]
    if kind == "list":
        return resp.execute("LRANGE", key, 0, -1)
    if kind == "set":
        return sorted(resp.execute("SMEMBERS", key))
    if kind == "stream":
        return [as_dict(fields) for _, fields in resp.execute("XRANGE", key, "-", "+")]
    return resp.execute("GET", key)


def same_keys(wire: WireQueue, content: dict[str, Any], bases: dict[str, str]):
    """Assert that exactly the recorded keys exist, with the recorded content, under our queue's name."""
    text = json.dumps(content["added"])
    for theirs, ours in bases.items():
        text = text.replace(f"glide:{{{theirs}}}", f"glide:{{{ours}}}")
    expected = {
        key: [fields for _, fields in entry["value"]["entries"]] if entry["type"] == "stream" else entry["value"]
        for key, entry in json.loads(text).items()
    }
    present = [
        key
        for ours in bases.values()
        for key in wire.resp.keys(f"glide:{{{ours}}}:*")
        if not key.endswith(":waiting-children")  # ours: docs/reference/wire-library.md
    ]
    assert {key: value_of(wire.resp, key) for key in present} == expected


@pytest.mark.parametrize("kind", ADDED)
def test_add_job_matches_node_records(wire: WireQueue, kind: str):
    content = golden(kind)
    theirs = kind.lower()
    jobs = recorded_jobs(content, f"glide:{{{theirs}}}")
    replies = [wire.add(**arguments(job)) for job in jobs]
    if kind == "customIdDup":
        replies += [wire.add(**arguments(jobs[0])) for _ in range(2)]
        assert replies == ["dup-a", "duplicate", "duplicate"]
    else:
        assert replies == content["returned"]
    same_keys(wire, content, {theirs: wire.name})


@pytest.mark.parametrize("kind", DEDUPLICATED)
def test_dedup_matches_node_records(wire: WireQueue, kind: str):
    content = golden(kind)
    theirs = kind.lower()
    (job,) = recorded_jobs(content, f"glide:{{{theirs}}}")
    rule = json.loads(job["opts"])["deduplication"]
    named = arguments(job)
    replies = [wire.dedup(rule["id"], rule["mode"], rule.get("ttl", 0), **named) for _ in range(3)]
    assert replies == [reply or "skipped" for reply in content["returned"]]
    same_keys(wire, content, {theirs: wire.name})


def test_add_flow_matches_node_records(wire: WireQueue):
    """One flow a parent: a child in the same queue, then the client adds a child in another queue itself, as the
    recorded events show (first the flow, then the child in the other queue)."""
    content = golden("flow")
    other = WireQueue(wire.resp, wire.name + "-child")
    same_slot = wire.resp.info("cluster").get("cluster_enabled") != "1"
    if not same_slot:
        pytest.skip("the recorded flow spans two slots")
    text = json.dumps(content).replace("glide:{flow}", wire.base).replace("glide:{flow-child}", other.base)
    content = json.loads(text)
    parents_and_children = recorded_jobs(content, wire.base)
    foreign = recorded_jobs(content, other.base)
    for i in range(3):
        parent, child, cross = parents_and_children[2 * i], parents_and_children[2 * i + 1], foreign[i]
        keys = ["id", "stream", "scheduled", "events"]
        reply = wire.call(
            "addFlow", [*keys, *keys, *map(other.key, keys)],
            parent["name"], parent["data"], parent["opts"], parent["timestamp"], 0, 0, 0, 2, "",
            child["name"], child["data"], child["opts"], 0, 0, 0, wire.base, "flow", "",
            cross["name"], cross["data"], cross["opts"], 0, 0, 0, other.base, "flow", "", 0,
        )  # fmt: skip
        assert json.loads(reply) == [parent["id"], child["id"], cross["id"]]
    same_keys(wire, content, {wire.name: wire.name, other.name: other.name})
    other.delete_everything()


def test_every_argument_of_add_job_is_used():
    assert len(ADD_ARGS) == 21
