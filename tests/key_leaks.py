"""Which keys a test may leave on the server: the declared permanent ones of a queue, and jobs that can be
found.

A job hash or a satellite of a job (its log, its dependencies, ...) is leaked when no index of its queue names
the job any more; any other key is leaked when it is not declared here and does not expire by itself.
"""

import fnmatch
import re

from glidemq_py.testing import RespClient

# data-model.md section 2, and the keys that we add (docs/reference).
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
            "retired",
            "scheduled",
        ),
        *(
            "dedup-expiry",
            "list-popped",
            "list-taken",
            "schedulers",
            "schedulers-due",
            "schedulers-ended",
            "schedulers-own",
            "stall-watch",
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
            "flows",
        ),
    }
)
# data-model.md section 3: the part of the key before the job's id.
_OF_A_JOB = re.compile(r"(?:job|log|deps|depvals|parents|jstream|signals):(?P<id>[^:]+)")
_KEY = re.compile(r"(?P<base>[^{]*\{[^}]*\}):(?P<rest>.+)", re.DOTALL)


class KeyLeaks:
    """Compares the keys of a server with those at its creation. `allow` what a test leaves on purpose."""

    def __init__(self, resp: RespClient) -> None:
        self._resp = resp
        self._before = frozenset(resp.keys("*"))
        self._allowed: list[str] = []

    def allow(self, *patterns: str) -> None:
        """Glob patterns of whole keys."""
        self._allowed += patterns

    def found(self) -> list[str]:
        """The keys that were leaked since."""
        indexed: dict[str, set[str]] = {}
        return [
            key
            for key in self._resp.keys("*")
            if key not in self._before
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
                return True  # of a root that is there; otherwise it has to end by itself
            of_a_job = _OF_A_JOB.fullmatch(rest)
            if of_a_job is not None:
                return of_a_job["id"] in self._indexed(base, indexed)
        elif key.endswith(":usage:queues"):
            return True  # the names of queues that have usage; it belongs to none of them
        return int(self._resp.execute("PTTL", key)) != -1  # -2: gone meanwhile

    def _indexed(self, base: str, indexed: dict[str, set[str]]) -> set[str]:
        if base not in indexed:
            indexed[base] = self._job_ids(base)
        return indexed[base]

    def _job_ids(self, base: str) -> set[str]:
        """The ids that the queue's indexes name. (Members of broadcast retries are `id||group`.)"""
        run = self._resp.execute
        ids: set[str] = set()
        for index in (
            "completed",
            "failed",
            "scheduled",
            "suspended",
            "list-active-ids",
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
