"""Call the 45 functions of the wire library like a client in another language, with client times."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from glidemq_py.testing import RespClient, RespError
from tests.inside import WIRE_VERSION, Library, Variant, assemble
from tests.lua.own_support import QueueKeys, as_dict

TRANSCRIPTS = Path(__file__).parent / "transcripts"
START = 1_800_000_000_000
"""The client's clock at the beginning of every test (epoch ms)."""

BAND = 2**42
GROUP = "workers"
CONSUMER = "worker-1700000000000-0badcafe"

ADD_ARGS = (
    "name", "data", "opts", "timestamp", "delay", "priority", "parent_id", "attempts", "ordering", "concurrency",
    "rate_max", "rate_duration", "capacity", "refill", "cost", "ttl", "id", "lifo", "parent_queue", "scheduler",
    "quiet",
)  # fmt: skip
"""ARGV of addJob, in order (lua/wire_library/add.lua)."""

DEFAULTS: Mapping[str, object] = dict.fromkeys(ADD_ARGS, 0) | {
    "name": "task", "data": "{}", "opts": "{}", "parent_id": "", "ordering": "", "id": "", "parent_queue": "",
    "scheduler": "",
}  # fmt: skip


@cache
def transcripts() -> dict[str, dict[str, Any]]:
    """Return the scenarios of each file (test_transcripts.py)."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(TRANSCRIPTS.glob("*.json"))}


@cache
def recorded_calls() -> dict[str, list[list[Any]]]:
    """Return the calls of each function that succeed in a transcript: keys, and arguments."""
    found: dict[str, list[list[Any]]] = {}
    for scenarios in transcripts().values():
        for (name, *call), reply in (step for each in scenarios.values() for step in each["steps"]):
            if (call and isinstance(call[0], list) and not isinstance(reply, dict)) or name == "moveToActive":
                found.setdefault(name, []).append(call)
    return found


@cache
def library() -> Library:
    """The wire variant, as it is published."""
    return assemble(Variant.WIRE)


def load(resp: RespClient):
    """Load the library on every primary, unless it is there: that costs the server 6 ms per test."""
    try:
        found = resp.execute("FCALL", library().function("version"), 0)
    except RespError:
        found = None
    if found != WIRE_VERSION:
        resp.execute_everywhere("FUNCTION", "LOAD", "REPLACE", library().code)


class WireQueue(QueueKeys):
    """`call` a function by its documented name, look at keys, and set the time."""

    library = "glidemq_"
    """Prefix of the function names."""

    def __init__(self, resp: RespClient, name: str):
        super().__init__(resp, name)
        self.now = START

    def call(self, function: str, keys: Sequence[str], *args: object) -> Any:
        """Call the function; keys are suffixes, or whole keys if they contain a brace."""
        whole = [key if "{" in key else self.key(key) for key in keys]
        return self.resp.execute("FCALL", self.library + function, len(whole), *whole, *(str(arg) for arg in args))

    # -- adding --------------------------------------------------------------------------------------------

    def add(self, **options: object) -> str:
        """addJob with named arguments; `timestamp` is the time of the test. Returns the reply."""
        deps = options.pop("deps", None)
        given = {**DEFAULTS, "timestamp": self.now, **options}
        keys = ["id", "stream", "scheduled", "events", *([str(deps)] if deps else [])]
        return str(self.call("addJob", keys, *(given[name] for name in ADD_ARGS)))

    def dedup(self, dedup_id: str, mode: str, window: int = 0, **options: object) -> str:
        given = {**DEFAULTS, "timestamp": self.now, **options}
        rest = [given[name] for name in ADD_ARGS if name != "scheduler"]
        keys = ["dedup", "id", "stream", "scheduled", "events"]
        return str(self.call("dedup", keys, dedup_id, window, mode, *rest))

    # -- a worker's calls ----------------------------------------------------------------------------------

    def read(self, count: int = 1, group: str = GROUP, consumer: str = CONSUMER) -> list[tuple[str, dict[str, str]]]:
        """XREADGROUP: (entry id, fields)."""
        self.make_group(group)
        reply = self.resp.execute(
            "XREADGROUP", "GROUP", group, consumer, "COUNT", count, "STREAMS", self.key("stream"), ">"
        )
        return [(entry, as_dict(fields)) for entry, fields in (reply[0][1] if reply else [])]

    def activate(self, job_id: str, entry: str, group: str = GROUP, broadcast: int = 0) -> Any:
        """moveToActive: the job's fields, or the word that refuses it."""
        keys = [f"job:{job_id}", "stream"]
        reply = self.call("moveToActive", keys, self.now, entry, group, job_id, broadcast)
        return as_dict(reply) if isinstance(reply, list) else reply

    def fetch(self) -> tuple[str, str, Any]:
        """Read one entry and activate its job: (job id, entry, reply)."""
        ((entry, fields),) = self.read()
        return fields["jobId"], entry, self.activate(fields["jobId"], entry)

    def take_id(self) -> tuple[str, str]:
        """Read and activate one job that must be runnable: (job id, entry)."""
        job_id, entry, reply = self.fetch()
        assert isinstance(reply, dict), reply
        return job_id, entry

    def pop(self, count: int = 1) -> list[str]:
        """popLists and the count that a worker keeps of it."""
        ids = self.call("popLists", ["priority", "lifo"], count)
        if ids:
            self.redis("INCRBY", "list-active", len(ids))
        return [str(job_id) for job_id in ids]

    def complete(
        self, job_id: str, entry: str, value: str = "null", parent: tuple[Sequence[str], str, str] | None = None
    ) -> int:  # fmt: skip
        keys = ["stream", "completed", "events", f"job:{job_id}", "metrics:completed", *(parent[0] if parent else ())]
        member, parent_id = (parent[1], parent[2]) if parent else ("", "")
        args = (job_id, entry, value, self.now, GROUP, "0", 0, 0, member, parent_id, 0)
        return int(self.call("complete", keys, *args))

    def complete_and_fetch(self, job_id: str, entry: str) -> list[str]:
        keys = ["stream", "completed", "events", f"job:{job_id}", "metrics:completed"]
        args = (job_id, entry, "null", self.now, GROUP, CONSUMER, "0", 0, 0, "", "", "", "", "", 0, "", "", 0, 0)
        return [str(item) for item in self.call("completeAndFetchNext", keys, *args)]

    def fail(
        self, job_id: str, entry: str, reason: str = "boom", limit: int = 0, backoff: int = 0, broadcast: int = 0,
        group: str = GROUP,
    ) -> str:  # fmt: skip
        keys = ["stream", "failed", "scheduled", "events", f"job:{job_id}", "metrics:failed"]
        args = (job_id, entry, reason, self.now, limit, backoff, group, "0", 0, 0, broadcast)
        return str(self.call("fail", keys, *args))

    def promote(self) -> int:
        return int(self.call("promote", ["scheduled", "stream", "events"], self.now))

    def remove(self, job_id: str) -> int:
        keys = [f"job:{job_id}", "stream", "scheduled", "completed", "failed", "events", f"log:{job_id}"]
        return int(self.call("removeJob", keys, job_id))

    def revoke(self, job_id: str) -> str:
        keys = [f"job:{job_id}", "stream", "scheduled", "failed", "events"]
        return str(self.call("revoke", keys, job_id, self.now, GROUP))

    def recover_stalled(self, min_idle: int = 0, max_stalled: int = 1) -> int:
        args = (GROUP, "worker-2", min_idle, max_stalled, self.now, self.key("failed"), 0, 0)
        return int(self.call("reclaimStalled", ["stream", "events"], *args))

    def recover_list_jobs(self, min_idle: int = 1000, max_stalled: int = 1) -> int:
        args = (min_idle, max_stalled, self.now, self.key("failed"), 0)
        return int(self.call("reclaimStalledListJobs", ["stream", "events"], *args))

    # -- looking -------------------------------------------------------------------------------------------

    def group(self, name: str) -> dict[str, str]:
        return self.resp.hash(self.key(f"group:{name}"))

    def queued(self) -> list[str]:
        """Job ids in the stream, pending or not."""
        return [entry["jobId"] for entry in self.entries()]

    def pending(self) -> list[str]:
        return [row[0] for row in self.resp.execute("XPENDING", self.key("stream"), GROUP, "-", "+", 1000)]

    def scores(self, suffix: str) -> dict[str, float]:
        flat = self.redis("ZRANGE", suffix, 0, -1, "WITHSCORES")
        return {member: float(score) for member, score in as_dict(flat).items()}

    def list_active(self) -> int:
        return int(self.redis("GET", "list-active") or 0)


@pytest.fixture(name="wire")
def wire_fixture(core_resp: RespClient, glidemq_queue_name: str) -> Iterator[WireQueue]:
    """Return a queue for one test."""
    load(core_resp)
    queue = WireQueue(core_resp, glidemq_queue_name)
    yield queue
    queue.delete_everything()
