"""The seeded faults: each breaks a behavior that users rely on, by replacing a text that is in its file once."""

from pathlib import Path
from typing import NamedTuple

__all__ = ["FAULTS", "ROOT", "Fault"]

ROOT = Path(__file__).resolve().parents[2]


class Fault(NamedTuple):
    """A fault. `breaks` is what users would see; if `before` moves, renew the patch with the same meaning."""

    name: str
    file: str
    before: str
    after: str
    breaks: str

    def apply(self, root: Path) -> None:
        """Put the fault into the tree of ``root``."""
        path = root / self.file
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if (count := text.count(self.before)) != 1:
            raise ValueError(f"fault {self.name}: {self.file} has its anchor {count} times; renew the patch")
        path.write_text(text.replace(self.before, self.after), encoding="utf-8")


FAULTS = [
    Fault(
        "stale-report", "lua/core/finish.lua",
        "    local rejected = current(key, row, COMPLETED)\n    if rejected then return rejected end\n", "",
        "the result of an attempt that was replaced by a later one is stored",
    ),
    Fault(
        "child-twice", "lua/features/flows/parents.lua",
        "if redis.call('HDEL', key, 'depdone:' .. member) == 1 then add_done(q, id, -1) end",
        "redis.call('HDEL', key, 'depdone:' .. member)",
        "a child that failed, is requeued and completes counts twice, and its parent runs before the others have ended",
    ),
    Fault(
        "concurrency", "lua/features/limits/limits.lua",
        "math.max(0, concurrency - G.active_count(q))", "math.max(0, concurrency + 1 - G.active_count(q))",
        "the global concurrency allows one job too many",
    ),
    Fault(
        "rate-window", "lua/features/limits/limits.lua",
        "'count', G.int(rate.count + taken)", "'count', G.int(taken)",
        "the rate limit of a queue forgets what earlier calls of the window have fetched",
    ),
    Fault(
        "sources-swapped", "lua/core/fetch.lua",
        "local ORDER = { 'priority_list', 'priorities', 'lifo', 'groups',",
        "local ORDER = { 'lifo', 'priority_list', 'priorities', 'groups',",
        "LIFO jobs run before jobs with a priority",
    ),
    Fault(
        "resume-wakes-nobody", "lua/core/functions/pause.lua",
        "    if paused == '0' then G.wake(q, RESUME_MARKERS) end\n", "",
        "idle workers do not notice that a queue is resumed",
    ),
    Fault(
        "one-kept-too-many", "lua/features/retention/retention.lua",
        "local excess = redis.call('ZCARD', zset) - count", "local excess = redis.call('ZCARD', zset) - count - 1",
        "retention by count keeps one job too many",
    ),
    Fault(
        "debounce-runs-both", "lua/features/deduplication/dedup.lua",
        "    G.remove_job(q, id, 'replaced by a newer job', quiet)\n    return 'replaced'\n", "    return 'replaced'\n",
        "a debounced job runs beside the newer one that replaces it",
    ),
    Fault(
        "outbox-row-dropped", "lua/features/outbox/outbox.lua",
        "  redis.call('XADD', q.outbox, '*', 'kind', kind, ...)\n",
        "  if kind ~= 'child' then redis.call('XADD', q.outbox, '*', 'kind', kind, ...) end\n",
        "a parent in another queue never learns that its child has ended",
    ),
    Fault(
        "stall-counted-late", "lua/features/stalled_jobs/recover_job.lua",
        "G.bump(q.J .. id, 'stalledCount') > most", "G.bump(q.J .. id, 'stalledCount') > most + 1",
        "a job whose worker dies runs once more than max_stalled_count allows",
    ),
    Fault(
        "failed-event-lost", "lua/core/finish.lua",
        "  if not b.quiet then G.emit(b.q.events, 'failed', row[ID], 'failedReason', reason) end\n", "",
        "no event reports that a job has failed finally",
    ),
    Fault(
        "early-signal-lost", "lua/features/suspend/finish_suspend.lua",
        "  if signal then S.resume(q, id, b.now, G.job_of(q, id), signal, b.quiet) end\n", "",
        "a signal that arrives while the handler still runs does not resume the job",
    ),
    Fault(
        "defaults-lost", "glidemq_py/_core/queue_options.py",
        "JobOptions.of_job(defaults, spec.options)", "JobOptions.of_job(NO_OPTIONS, spec.options)",
        "jobs of a bulk do not get the default options of the queue",
    ),
    Fault(
        "outcomes-swapped", "glidemq_py/_api/coalescer.py",
        "reply.results[done : done + len(rows)]", "reply.results[: len(rows)]",
        "concurrent adds get the id of another add's job",
    ),
    Fault(
        "results-not-repeated", "glidemq_py/_worker/fetch_engine.py",
        "        self.finished.extendleft(reversed(batch))\n", "",
        "results whose report was lost with the connection are not reported again",
    ),
    Fault(
        "backoff-doubled", "glidemq_py/_core/option_values.py",
        "1 << min(max(attempts_made - 1, 0), _MAX_EXPONENT)", "1 << min(max(attempts_made, 0), _MAX_EXPONENT)",
        "the exponential backoff begins with twice the delay",
    ),
    Fault(
        "age-as-count", "glidemq_py/_core/option_values.py",
        "(value.count or 0, value.age or 0)", "(value.age or 0, value.count or 0)",
        "the count of a retention option is taken as its age",
    ),
    Fault(
        "run-at-late", "glidemq_py/_core/calls/adding.py",
        "run_at=options.run_at_ms or 0,", "run_at=options.run_at_ms and options.run_at_ms + 3_600_000 or 0,",
        "a job with run_at is due an hour late",
    ),
    Fault(
        "event-repeated", "glidemq_py/_client/event_reader.py",
        "self.position = found[-1][0].decode", "self.position = found[0][0].decode",
        "readers of events get events twice",
    ),
    Fault(
        "cancel-ignored", "glidemq_py/_worker/heartbeat.py",
        "if status != AttemptStatus.OK and run in self._running:",
        "if status == AttemptStatus.GONE and run in self._running:",
        "the handler of a revoked job is not cancelled",
    ),
    Fault(
        "wake-up-lost", "glidemq_py/_worker/fetch_engine.py",
        "not flags or call.wake_count != self.wake_count", "not flags",
        "a worker misses a job that is added while its call is on the way",
    ),
    Fault(
        "slot-not-counted", "glidemq_py/_worker/fetch_engine.py",
        "pool.free += call.want - fetched", "pool.free += call.want",
        "a worker runs more jobs at once than its concurrency",
    ),
    Fault(
        "stop-time-exceeded", "glidemq_py/_worker/timeouts.py",
        "timeout / 1000, _expire", "timeout, _expire",
        "the timeout of an attempt is a thousand times as long",
    ),
    Fault(
        "undelivered-forgotten", "glidemq_py/_features/outbox.py",
        "                    failure = failure or error\n",
        "                    failure = failure or error\n                    done += [entry.id for entry in entries]\n",
        "what cannot be delivered to another queue (a dead letter, the end of a child) is lost",
    ),
]  # fmt: skip
