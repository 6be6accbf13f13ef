"""Call the 45 functions of the wire library like a client in another language, with client times.
Nothing of the library above `wire` may enter here."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pytest

from glidemq_py._client.library_source import WIRE_VERSION, Library, Variant, assemble
from glidemq_py.testing import RespClient, RespError

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
def library() -> Library:
    """The wire variant, as it is published."""
    return assemble(Variant.WIRE)


def load(resp: RespClient) -> None:
    """Load the library on every primary, unless it is there: that costs the server 6 ms per test."""
    try:
        found = resp.execute("FCALL", library().function("version"), 0)
    except RespError:
        found = None
    if found != WIRE_VERSION:
        resp.execute_everywhere("FUNCTION", "LOAD", "REPLACE", library().code)


def as_dict(flat: Sequence[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


class WireQueue:
    """`call` a function by its documented name, look at keys, and set the time."""

    library = "glidemq_"
    """Prefix of the function names."""

    def __init__(self, resp: RespClient, name: str) -> None:
        self.resp = resp
        self.name = name
        self.base = f"glide:{{{name}}}"
        self.now = START

    def key(self, suffix: str) -> str:
        return f"{self.base}:{suffix}"

    def keys_of(self, *suffixes: str) -> list[str]:
        return [self.key(suffix) for suffix in suffixes]

    def call(self, function: str, keys: Sequence[str], *args: object) -> Any:
        """Call the function; keys are suffixes, or whole keys if they contain a brace."""
        whole = [key if "{" in key else self.key(key) for key in keys]
        return self.resp.execute("FCALL", self.library + function, len(whole), *whole, *(str(arg) for arg in args))

    def redis(self, command: str, suffix: str, *arguments: str | bytes | float) -> Any:
        return self.resp.execute(command, self.key(suffix), *arguments)

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

    def make_group(self, group: str = GROUP) -> None:
        groups = self.redis("EXISTS", "stream") and self.resp.execute("XINFO", "GROUPS", self.key("stream"))
        if not groups or group not in str(groups):
            self.resp.execute("XGROUP", "CREATE", self.key("stream"), group, "0", "MKSTREAM")

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

    def add_and_take(self, **options: object) -> tuple[str, str]:
        """Add a job, read and activate it: (job id, entry)."""
        self.add(**options)
        return self.take_id()

    def pop(self, count: int = 1) -> list[str]:
        """popLists and the count that a worker keeps of it."""
        ids = self.call("popLists", ["priority", "lifo"], count)
        if ids:
            self.redis("INCRBY", "list-active", len(ids))
        return [str(job_id) for job_id in ids]

    def complete(
        self, job_id: str, entry: str, value: str = "null", retention: Sequence[object] = ("0", 0, 0),
        parent: tuple[Sequence[str], str, str] | None = None, broadcast: int = 0, group: str = GROUP,
    ) -> int:  # fmt: skip
        keys = ["stream", "completed", "events", f"job:{job_id}", "metrics:completed", *(parent[0] if parent else ())]
        member, parent_id = (parent[1], parent[2]) if parent else ("", "")
        args = (job_id, entry, value, self.now, group, *retention, member, parent_id, broadcast)
        return int(self.call("complete", keys, *args))

    def complete_and_fetch(self, job_id: str, entry: str, started: object = "", quiet: int = 0) -> list[str]:
        keys = ["stream", "completed", "events", f"job:{job_id}", "metrics:completed"]
        args = (
            job_id,
            entry,
            "null",
            self.now,
            GROUP,
            CONSUMER,
            "0",
            0,
            0,
            "",
            "",
            "",
            "",
            "",
            0,
            started,
            "",
            quiet,
            0,
        )
        return [str(item) for item in self.call("completeAndFetchNext", keys, *args)]

    def fail(
        self, job_id: str, entry: str, reason: str = "boom", limit: int = 0, backoff: int = 0,
        retention: Sequence[object] = ("0", 0, 0), broadcast: int = 0, group: str = GROUP,
    ) -> str:  # fmt: skip
        keys = ["stream", "failed", "scheduled", "events", f"job:{job_id}", "metrics:failed"]
        args = (job_id, entry, reason, self.now, limit, backoff, group, *retention, broadcast)
        return str(self.call("fail", keys, *args))

    def promote(self) -> int:
        return int(self.call("promote", ["scheduled", "stream", "events"], self.now))

    def remove(self, job_id: str) -> int:
        keys = [f"job:{job_id}", "stream", "scheduled", "completed", "failed", "events", f"log:{job_id}"]
        return int(self.call("removeJob", keys, job_id))

    def revoke(self, job_id: str) -> str:
        keys = [f"job:{job_id}", "stream", "scheduled", "failed", "events"]
        return str(self.call("revoke", keys, job_id, self.now, GROUP))

    def recover_stalled(self, min_idle: int = 0, max_stalled: int = 1, broadcast: int = 0, group: str = GROUP) -> int:
        args = (group, "worker-2", min_idle, max_stalled, self.now, self.key("failed"), broadcast, 0)
        return int(self.call("reclaimStalled", ["stream", "events"], *args))

    def recover_list_jobs(self, min_idle: int = 1000, max_stalled: int = 1) -> int:
        args = (min_idle, max_stalled, self.now, self.key("failed"), 0)
        return int(self.call("reclaimStalledListJobs", ["stream", "events"], *args))

    # -- looking -------------------------------------------------------------------------------------------

    def job(self, job_id: str) -> dict[str, str]:
        return self.resp.hash(self.key(f"job:{job_id}"))

    def state(self, job_id: str) -> str | None:
        state = self.redis("HGET", f"job:{job_id}", "state")
        return None if state is None else str(state)

    def group(self, name: str) -> dict[str, str]:
        return self.resp.hash(self.key(f"group:{name}"))

    def entries(self) -> list[dict[str, str]]:
        return [as_dict(fields) for _, fields in self.redis("XRANGE", "stream", "-", "+")]

    def queued(self) -> list[str]:
        """Job ids in the stream, pending or not."""
        return [entry["jobId"] for entry in self.entries()]

    def pending(self) -> list[str]:
        return [row[0] for row in self.resp.execute("XPENDING", self.key("stream"), GROUP, "-", "+", 1000)]

    def events(self, job_id: str | None = None) -> list[dict[str, str]]:
        found = [as_dict(fields) for _, fields in self.redis("XRANGE", "events", "-", "+")]
        return [event for event in found if job_id is None or event["jobId"] == job_id]

    def event_names(self, job_id: str | None = None) -> list[str]:
        return [event["event"] for event in self.events(job_id)]

    def scores(self, suffix: str) -> dict[str, float]:
        flat = self.redis("ZRANGE", suffix, 0, -1, "WITHSCORES")
        return {member: float(score) for member, score in as_dict(flat).items()}

    def metric(self, kind: str) -> dict[str, int]:
        """{'c': count, 'd': summed duration} over all minutes."""
        sums = {"c": 0, "d": 0}
        for field, value in self.resp.hash(self.key(f"metrics:{kind}")).items():
            sums[field.rpartition(":")[2]] += int(value)
        return sums

    def list_active(self) -> int:
        return int(self.redis("GET", "list-active") or 0)

    def has_keys(self) -> set[str]:
        """Suffixes of all keys of this queue."""
        return {key.removeprefix(self.base + ":") for key in self.resp.keys(f"glide:{{{self.name}}}:*")}

    def delete_everything(self) -> None:
        for suffix in self.has_keys():
            self.redis("UNLINK", suffix)


@pytest.fixture(name="wire")
def wire_fixture(core_resp: RespClient, glidemq_queue_name: str) -> Iterator[WireQueue]:
    """A queue of the test's own, on each supported server."""
    load(core_resp)
    queue = WireQueue(core_resp, glidemq_queue_name)
    yield queue
    queue.delete_everything()
