"""The consistency check, driven without an event loop over a queue whose clock the test sets."""

from collections.abc import Generator
from typing import Any

from glidemq_py._features.consistency.queue_api import MAX_SCANS, repairs, report
from glidemq_py.records import CheckReport
from tests.inside import Call, QueueKeys, checking
from tests.lua.own_support import OwnQueue


def _drive(q: OwnQueue, steps: Generator[Any, Any, None]):
    batches = iter([[q.key(name) for name in sorted(q.key_names())]])
    reply: Any = None
    while True:
        try:
            step = steps.send(reply)
        except StopIteration:
            return
        reply = q.run(step) if isinstance(step, Call) else next(batches, None)


def check(q: OwnQueue, *, repair: bool = False, looks: int = MAX_SCANS) -> CheckReport:
    """Run `Queue.check` on a queue without other clients."""
    name = q.name
    look, done = _scan(q, name), 1
    suspects = look.suspects
    while suspects and done < looks:
        look, done = _scan(q, name), done + 1
        suspects = {key: look.suspects[key] for key in suspects if key in look.suspects}
    left = suspects
    if repair and suspects:
        _drive(q, repairs(look, suspects))
        look = _scan(q, name)
        left = look.suspects
    return report(look, suspects, left, done)


def _scan(q: OwnQueue, name: str) -> checking.ConsistencyScan:
    look = checking.ConsistencyScan(QueueKeys("glide", name))
    _drive(q, look.steps())
    return look


def findings(found: CheckReport) -> list[list[str]]:
    """Kind and subject of each."""
    return sorted([finding.kind.value, finding.subject] for finding in found.findings)


def repaired(q: OwnQueue) -> list[list[str]]:
    """Return what the check finds; it changes nothing, repairs all of it, and is content afterwards."""
    before, found = q.key_names(), findings(check(q))
    assert q.key_names() == before
    mended = check(q, repair=True)
    assert findings(mended) == found
    assert mended.ok, str(mended)
    left = check(q)
    assert left.findings == (), str(left)
    return found
