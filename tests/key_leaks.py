"""Detection of leaked keys: a test may leave a queue's permanent keys and reachable jobs on the server.

A job hash or a satellite of a job (its log, its dependencies, ...) is leaked if no index of its queue contains the job.
Any other key is leaked if it is not declared here and does not expire.
"""

import fnmatch
import re

from glidemq_py.testing import RespClient

# docs/reference/data-model.md lists these keys.
PERMANENT = frozenset(
    {
        *("completed", "dedup", "events", "failed", "id", "lifo", "list-active", "list-active-ids", "meta"),
        *(
            "metrics:completed",
            "metrics:failed",
            "ordering",
            "outbox",
            "priority",
            "rate",
            "ratelimited",
            "invalidated",
            "scheduled",
        ),
        *(
            "dedup-expiry",
            "failure-counts",
            "failure-retries",
            "leases",
            "list-heartbeats",
            "list-popped",
            "schedulers",
            "schedulers-due",
            "schedulers-ended",
            "schedulers-own",
            "stall-watch",
            "stalled-policies",
            "stream",
            "suspended",
            "suspects",
            "wake",
            "workers",
            "writes",
            "waiting-children",
            "remote-children",
            "group-watch",
            "remote-parents",
            "results",
            "flows",
        ),
    }
)
# Part of a satellite's key before the job's id (docs/reference/data-model.md).
_OF_A_JOB = re.compile(r"(?:job|log|deps|depvals|parents|jstream|signals):(?P<id>[^:]+)")
_KEY = re.compile(r"(?P<base>[^{]*\{[^}]*\}):(?P<rest>.+)", re.DOTALL)


_QUEUE_LIST = re.compile(r":queues:\d+$|:gateway:queues$|:audit$|:bulk$|:bulk:[0-9a-f]{16}(:lock)?$")


class KeyLeaks:
    """Compares the keys of a server with those at its creation. Use `allow` for keys that a test leaves on purpose."""

    def __init__(self, resp: RespClient):
        self._resp = resp
        self.before = frozenset(resp.keys("*"))
        self._allowed: list[str] = []

    def allow(self, *patterns: str):
        """Add glob patterns of whole keys that may be left."""
        self._allowed += patterns

    def found(self) -> list[str]:
        """Return the keys leaked since the creation."""
        indexed: dict[str, set[str]] = {}
        return [
            key
            for key in self._resp.keys("*")
            if key not in self.before
            and not any(fnmatch.fnmatchcase(key, pattern) for pattern in self._allowed)
            and not self._stands(key, indexed)
        ]

    def _stands(self, key: str, indexed: dict[str, set[str]]) -> bool:
        parts = _KEY.fullmatch(key)
        if parts is not None:
            base, rest = parts["base"], parts["rest"]
            if rest in PERMANENT:
                return True
            if rest.startswith("budget:") and rest[7:] in self._indexed(base, indexed):
                return True  # the root job exists; otherwise the key must expire
            of_a_job = _OF_A_JOB.fullmatch(rest)
            if of_a_job is not None:
                return of_a_job["id"] in self._indexed(base, indexed)
        elif key.endswith(":usage:queues") or _QUEUE_LIST.search(key):
            return True  # the names of queues; not part of a queue
        return int(self._resp.execute("PTTL", key)) != -1  # -2: deleted meanwhile

    def _indexed(self, base: str, indexed: dict[str, set[str]]) -> set[str]:
        if base not in indexed:
            indexed[base] = self._job_ids(base)
        return indexed[base]

    def _job_ids(self, base: str) -> set[str]:
        """Return the ids in the queue's indexes. (Members of broadcast retries are `id||group`.)"""
        run = self._resp.execute
        ids: set[str] = set()
        for index in (
            "completed",
            "failed",
            "scheduled",
            "suspended",
            "list-heartbeats",
            "waiting-children",
            "suspects",
        ):
            if run("TYPE", f"{base}:{index}") == "zset":
                ids.update(run("ZRANGE", f"{base}:{index}", 0, -1))
        for index in ("lifo", "priority"):
            ids.update(run("LRANGE", f"{base}:{index}", 0, -1))
        for _, fields in run("XRANGE", f"{base}:stream", "-", "+"):
            ids.add(dict(zip(fields[::2], fields[1::2], strict=True)).get("jobId", ""))
        return {name.partition("||")[0] for name in ids}
