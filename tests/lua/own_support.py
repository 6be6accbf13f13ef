"""Call the functions of our own library one by one, with a clock set by the test.
Python objects of the library above `wire` may not enter here."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from glidemq_py.testing import RespClient, RespError
from tests.inside import Call, Library, Row, add, administration, assemble, changed, declared_keys, row, working

START = 1_800_000_000_000
"""Start time of the clock of every test queue, epoch ms."""

NODE_CONSUMER = "worker-1700000000000-0badcafe"
"""A consumer name as a Node peer makes it."""

BAND = 2**42


@cache
def library() -> Library:
    """Our variant with the clock that tests set."""
    return assemble(settable_clock=True)


def load(resp: RespClient):
    """Load the library, whose functions have its hash in their names, on every primary, unless it is there."""
    try:
        resp.execute("FCALL", library().function("version"), 0)
    except RespError:
        resp.execute_everywhere("FUNCTION", "LOAD", "REPLACE", library().code)


def as_dict(flat: Sequence[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _as_bytes(reply: Any):
    if isinstance(reply, str):
        return reply.encode("utf-8", "surrogateescape")
    return [_as_bytes(item) for item in reply] if isinstance(reply, list) else reply


class QueueKeys:
    """The keys of a queue."""

    def __init__(self, resp: RespClient, name: str):
        self.resp = resp
        self.name = name
        self.base = f"glide:{{{name}}}"

    def key(self, suffix: str) -> str:
        return f"{self.base}:{suffix}"

    def redis(self, command: str, suffix: str, *arguments: str | bytes | float):
        """A command on the key `suffix` of this queue."""
        return self.resp.execute(command, self.key(suffix), *arguments)

    def make_group(self, group: str = "workers"):
        groups = self.redis("EXISTS", "stream") and self.resp.execute("XINFO", "GROUPS", self.key("stream"))
        if not groups or group not in str(groups):
            self.resp.execute("XGROUP", "CREATE", self.key("stream"), group, "0", "MKSTREAM")

    def job(self, job_id: str) -> dict[str, str]:
        return self.resp.hash(self.key(f"job:{job_id}"))

    def state(self, job_id: str) -> str | None:
        state = self.redis("HGET", f"job:{job_id}", "state")
        return None if state is None else str(state)

    def entries(self) -> list[dict[str, str]]:
        return [as_dict(fields) for _, fields in self.redis("XRANGE", "stream", "-", "+")]

    def key_names(self) -> set[str]:
        """Suffixes of all keys of this queue but the clock."""
        return {key.removeprefix(self.base + ":") for key in self.resp.keys(escaped(self.base) + ":*")} - {"clock"}

    def delete_everything(self):
        for suffix in self.key_names() | {"clock"}:
            self.redis("UNLINK", suffix)


class OwnQueue(QueueKeys):
    """`run` a declared call, look at keys, and set the time."""

    def __init__(self, resp: RespClient, name: str):
        super().__init__(resp, name)
        self.meta = self.key("meta")
        self.now = 0
        load(resp)
        self.set_time(START)

    def set_time(self, at: int):
        self.now = at
        self.resp.execute("SET", self.key("clock"), at)

    def advance(self, ms: int) -> int:
        self.set_time(self.now + ms)
        return self.now

    def run(self, call: Call[Any]):
        return call.decode(_as_bytes(self.fcall(call.function, call.key, *call.args)))

    def fcall(self, function: str, key: str, *args: str | bytes):
        return self.resp.execute("FCALL", library().function(function), 2, *declared_keys(key), *args)

    def redis_groups(self, suffix: str) -> list[list[Any]]:
        """XINFO GROUPS of a stream."""
        return list(self.resp.execute("XINFO", "GROUPS", self.key(suffix)))

    # -- the calls that most tests make --------------------------------------------------------------------

    def add(self, *rows: Row, quiet: bool = False) -> list[Any]:
        return list(self.run(add(self.meta, rows, quiet)).results)

    def add_job(self, name: str = "task", **options: Any) -> str:
        """Add one job; its id."""
        (result,) = self.add(row(name, options.pop("data", "{}"), options.pop("opts", "{}"), **options))
        assert isinstance(result, str), result
        return result

    def exchange(
        self,
        want: int = 1,
        finished: Sequence[working.Finished] = (),
        consumer: str = "py-1",
        quiet: bool = False,
        no_metrics: bool = False,
        held: working.Held | None = None,
    ) -> working.ExchangeReply:
        reply = self.run(working.exchange(self.meta, consumer, want, finished, quiet, no_metrics, held=held))
        assert isinstance(reply, working.ExchangeReply)
        return reply

    def fetch(self, want: int = 1, consumer: str = "py-1") -> list["Fetched"]:
        """Take jobs; each with the token that its later calls carry."""
        reply = self.exchange(want, consumer=consumer)
        return [Fetched(job, reply.now) for job in reply.jobs]

    def take_one(self, consumer: str = "py-1") -> "Fetched":
        (job,) = self.fetch(1, consumer)
        return job

    def finish(self, *finished: working.Finished) -> list[int]:
        return list(self.exchange(0, finished).statuses)

    def recover_stalled(
        self, max_stalled: int = 1, *, holder: str = "py-9", hold: int = 60_000, lock: int = 30_000, cursor: str = "",
        grace: int = 0,
    ) -> working.RecoverStalledReply:  # fmt: skip
        reply = self.run(working.recover_stalled(self.meta, holder, hold, lock, max_stalled, False, cursor, grace))
        assert isinstance(reply, working.RecoverStalledReply)
        return reply

    def obliterate(self, *, force: bool = False, batch: int = 100) -> list[tuple[str, int]]:
        """Delete the queue; the status of each call, with the number of jobs it deleted."""
        replies: list[tuple[str, int]] = []
        cursor = ""
        while not replies or replies[-1][0] == "more":
            step = self.run(administration.obliterate(self.meta, force, batch, cursor))
            cursor = step.cursor
            replies.append((step.status, step.deleted))
        return replies

    # -- looking -------------------------------------------------------------------------------------------

    def put_job(self, job_id: str, **fields: object) -> str:
        """Write a job hash as a Node peer does (without our additions) and return its id."""
        record = {
            "id": job_id, "name": "task", "data": "{}", "opts": "{}", "timestamp": self.now, "attemptsMade": 0,
            "delay": 0, "priority": 0, "maxAttempts": 0, "state": "waiting",
        }  # fmt: skip
        flat = [str(item) for pair in (record | fields).items() for item in pair]
        self.redis("HSET", f"job:{job_id}", *flat)
        return job_id

    def push_entry(self, job_id: str, name: str = "task") -> str:
        """A stream entry as a Node peer pushes it."""
        return str(self.redis("XADD", "stream", "*", "jobId", job_id, "name", name))

    def read_as(self, consumer: str, count: int = 1) -> list[str]:
        """Read entries as a consumer of another library does; their ids."""
        self.make_group()
        reply = self.resp.execute(
            "XREADGROUP", "GROUP", "workers", consumer, "COUNT", count, "STREAMS", self.key("stream"), ">"
        )
        return [entry[0] for entry in reply[0][1]] if reply else []

    def let_idle(self, entry: str, ms: int, consumer: str = "py-1"):
        """Set the idle time of a pending entry to `ms`."""
        self.resp.execute(
            "XCLAIM", self.key("stream"), "workers", consumer, 0, entry, "IDLE", ms, "JUSTID"
        )  # fmt: skip

    def pending(self) -> list[tuple[str, str]]:
        """Return (entry, consumer) of the pending entries."""
        rows = self.resp.execute("XPENDING", self.key("stream"), "workers", "-", "+", 1000)
        return [(entry, consumer) for entry, consumer, *_ in rows]

    def events(self, job_id: str | None = None) -> list[dict[str, str]]:
        found = [as_dict(fields) for _, fields in self.redis("XRANGE", "events", "-", "+")]
        return [event for event in found if job_id is None or event["jobId"] == job_id]

    def event_names(self, job_id: str | None = None) -> list[str]:
        return [event["event"] for event in self.events(job_id)]

    def calls(self, *commands: str) -> int:
        """Return how often the server has run these commands, or any."""
        found = self.resp.info("commandstats").items()
        chosen = [text for name, text in found if not commands or name.removeprefix("cmdstat_") in commands]
        return sum(int(text.split(",")[0].removeprefix("calls=")) for text in chosen)

    def metric(self, kind: str) -> dict[str, int]:
        """{'c': count, 'd': summed duration} over all minutes."""
        sums = {"c": 0, "d": 0}
        for field, value in self.resp.hash(self.key(f"metrics:{kind}")).items():
            sums[field.rpartition(":")[2]] += int(value)
        return sums

    def counts(self) -> dict[str, int]:
        names = ("waiting", "active", "delayed", "prioritized", "completed", "failed", "paused", "suspended",
                 "waiting_children", "group_waiting", "band", "below_normal")  # fmt: skip
        return dict(zip(names, self.fcall("counts", self.meta), strict=True))


class Fetched:
    """A job as `exchange` and `reattach` hand it out."""

    def __init__(self, fields: Sequence[Any], processed_on: int):
        self.given = list(fields)
        self.fields = dict(zip(FETCHED_FIELDS, fields, strict=False))
        if len(fields) < len(NEVER_RUN):
            self.fields = NEVER_RUN | self.fields
        self.id = str(fields[0])
        self.entry = str(fields[1])
        self.fence = int(fields[2])
        self.processed_on = processed_on

    @property
    def token(self) -> tuple[str, str, int, int]:
        """Return id, entry, fence and processedOn, as sent by a worker's calls about this attempt."""
        return self.id, self.entry, self.fence, self.processed_on

    def completed(self, result: str = "null", keep: working.Keep = 0) -> working.Completed:
        kind = working.COMPLETED_PLAIN if len(self.given) == PLAIN_LENGTH else working.COMPLETED
        return changed(working.completed(*self.token, result, keep), kind=kind)

    def failed(self, reason: str = "boom", limit: int = 0, backoff: int = 0, keep: working.Keep = 0) -> working.Failed:
        return working.failed(*self.token, reason, "ValueError", "Traceback", limit, backoff, keep)

    def released(self) -> working.Released:
        return working.released(*self.token)

    def returned(self) -> working.Released:
        return working.returned(*self.token)


PLAIN_LENGTH = 7
"""Length of the row of a plain job that has never run."""

FETCHED_FIELDS = ("id", "entry", "fence", "name", "data", "opts", "timestamp", "attemptsMade", "progress",
                "stalledCount", "priority", "stacktrace", "signals", "fallbackIndex", "failedReason", "failedType",
                "suspectLimit", "ownKeys")  # fmt: skip


NEVER_RUN = {**dict.fromkeys(FETCHED_FIELDS[:12], False), "attemptsMade": "0", "priority": "0"}
"""What the row of a plain job that has never run leaves out."""


def escaped(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "*?[]^\\" else letter for letter in text)
