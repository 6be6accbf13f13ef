"""Holders of leases and workers of several queues share a queue with a stalled policy; backups are made of it. One
party is killed (SIGKILL) after another, and the functions are lost.
"""

import importlib.util
from pathlib import Path

from tests.chaos.run import QUEUE, ChaosRun
from tests.chaos.settings import KINDS

NUMBER = 19
TITLE = "leases, workers of several queues, a stalled policy and backups: one party killed every 2 s"
IDLE = "chaos-idle"
"""Served first by workers of several queues; it has no jobs."""
RESTORED = "chaos-restored"
POLICY = {"stalled_interval": 1_000, "max_stalled_count": 1_000, "stalled_grace": 0}
LOCK_MS = 2_000
LIMIT_S = (2 * LOCK_MS + POLICY["stalled_interval"]) / 1000 + 1
"""A holder may have extended its lease to twice the lock."""


def play(run: ChaosRun):
    run.start_server()
    run.leaks.allow("*:wake-channels")
    with run.queue() as queue:
        queue.settings.set_stalled_policy(**POLICY)
    # The policy applies to workers without options of their own.
    options = {"lock_duration": LOCK_MS, "stalled_interval": None, "max_stalled_count": None, "concurrency": 5}
    parties = [
        run.fleet.worker(options=options, work_ms=30),
        run.fleet.worker(options=options, work_ms=30, queues=(IDLE, QUEUE)),
        run.fleet.worker(options=options, work_ms=30, queues=(IDLE, QUEUE)),
        run.fleet.holder(work_ms=30),
        run.fleet.holder(work_ms=30),
    ]
    for party in parties:
        party.wait_ready()
    for _ in range(2):
        run.fleet.producer(rate=60, kinds=tuple(kind for kind in KINDS if kind != "steps"))  # a lease cannot sleep
    backups = Path(run.folder, "backups") if importlib.util.find_spec("obstore") else None
    before: dict[str, frozenset[str]] = {}
    kills = 0
    for number in run.faults(4, progress=60):
        if number % 4 == 3:
            run.client.execute("FUNCTION", "FLUSH")
        else:
            index = (2 * number) % len(parties)
            victim = parties[index]
            victim.wait_active()
            run.killed(victim.kill(), LIMIT_S)
            is_holder = victim.name.startswith("holder")
            parties[index] = run.fleet.holder(work_ms=30) if is_holder else run.fleet.replace_worker(victim)
            kills += 1
        if backups is not None:
            run.ledger.sync()
            known = frozenset(run.ledger.acknowledged)
            with run.queue() as queue:
                before[queue.backups.create(backups).id] = known
    run.note(f"{kills} parties killed, {len(before)} backups of up to {max(map(len, before.values()), default=0)} jobs")
    if backups is not None:
        run.checks.append(lambda: _check_backups(run, backups, before))


def _check_backups(run: ChaosRun, folder: Path, before: dict[str, frozenset[str]]):
    """Each job that was acknowledged before a backup began is in it once, and the backup can be restored."""
    for backup, known in before.items():
        with run.queue(RESTORED) as copy:
            report = copy.backups.restore(folder, source=QUEUE, backup_id=backup)
            found = {key.rpartition(":")[2] for key in run.client.keys(f"glide:{{{RESTORED}}}:job:*")}
            run.expect(known <= found, f"backup {backup} lacks {sorted(known - found)[:5]}")
            run.expect(report.jobs == len(found), f"backup {backup} has {report.jobs} records of {len(found)} jobs")
            findings = copy.check(recheck_after=0).findings
            run.expect(not findings, f"restored backup {backup}: {findings[:5]}")
            copy.obliterate(force=True)
