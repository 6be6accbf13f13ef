"""Five workers fire schedulers, by interval and by pattern, while the one that leads is killed every 3 s.

The variants run over a change of the local time, by the clock of the server.
"""

import json
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from tests.chaos.rows.clocks import faketime_library, start_server_with_clock
from tests.chaos.run import ChaosRun

NUMBER = 13
TITLE = "5 schedulers' workers, the leader killed every 3 s: every due time once, missed ones by the misfire rule"
VARIANTS = ("", "spring", "autumn")
EVERY_MS = 500
MISSED_S = 7.0
"""How long no worker runs; later than 5 s, "skip" skips."""
LATE_MS = 5_000
BEFORE_S = 6
"""Seconds from the first due time to the change of the local time."""
ZONE = "Europe/Berlin"
CHANGES = {"spring": datetime(2027, 3, 28, 1, tzinfo=UTC), "autumn": datetime(2027, 10, 31, 1, tzinfo=UTC)}
OPTIONS: dict[str, Any] = {"lock_duration": 1_000, "stalled_interval": 1_000}


def missing(variant: str) -> str:
    return "" if not variant or faketime_library() else "libfaketime is not installed (Debian: faketime)"


def play(run: ChaosRun, variant: str = ""):
    if variant:
        _over_a_change(run, variant)
    else:
        _with_missed_runs(run)


def _with_missed_runs(run: ChaosRun):
    run.start_server()
    with run.queue() as queue:
        _add(queue, "interval", every=EVERY_MS)
        for misfire in ("fire_all", "fire_once", "skip"):
            _add(queue, misfire, pattern="* * * * * *", misfire=misfire)
    run.fleet_of(5 if run.long else 3, jobs=50, rate=20, options=OPTIONS)
    _kill_leaders(run)
    # Nothing fires for a while.
    workers, run.fleet.workers = run.fleet.workers, []
    for victim in workers:
        victim.kill()
    run.ledger.wait(lambda: False, MISSED_S)
    for victim in workers:
        run.fleet.replace_worker(victim)
    _finish(run, ("interval", "fire_all", "fire_once", "skip"))
    run.checks.append(lambda: _check_missed(run))


def _check_missed(run: ChaosRun):
    due = _due_times(run)
    _each_once(run, "interval", due["interval"], EVERY_MS)
    _each_once(run, "fire_all", due["fire_all"], 1_000)
    for name in ("fire_once", "skip"):
        times = sorted(due[name])
        run.expect(len(times) == len({at for at, _ in times}), f"scheduler {name}: a due time was added twice")
        run.expect(all(at % 1_000 == 0 for at, _ in times), f"scheduler {name}: added for other times")
    early = [at for (_, added), (at, _) in pairwise(sorted(due["fire_once"])) if at < added - 1_000]
    run.expect(not early, f"scheduler fire_once: missed runs have several jobs: {early[:5]}")
    late = [added - at for at, added in due["skip"] if added - at > LATE_MS + 1_000]
    run.expect(not late, f"scheduler skip: runs were added {late[:5]} ms late")
    missed = [len(due["fire_all"]) - len(due[name]) for name in ("fire_once", "skip")]
    run.expect(all(count >= MISSED_S - LATE_MS / 1000 for count in missed), f"no runs were missed: {missed}")


def _over_a_change(run: ChaosRun, variant: str):
    """The clock of the server approaches the change; the clocks of the workers are of today."""
    change = CHANGES[variant].timestamp()
    clock = start_server_with_clock(run)
    run.fleet_of(5 if run.long else 3, jobs=50, rate=20, options=OPTIONS)
    clock.write_text(f"+{change - BEFORE_S - time.time():.0f}")
    while int(run.client.execute("TIME")[0]) < change - BEFORE_S - 60:
        time.sleep(0.05)  # libfaketime reads the file once a second
    with run.queue() as queue:
        _add(queue, "second", pattern="* * * * * *", tz=ZONE)
        _add(queue, "minute", pattern="* * * * *", tz=ZONE)
    while int(run.client.execute("TIME")[0]) < change - 1:
        time.sleep(0.05)
    _kill_leaders(run)
    _finish(run, ("second", "minute"))

    def check():
        due = _due_times(run)
        _each_once(run, "second", due["second"], 1_000)
        _each_once(run, "minute", due["minute"], 60_000)
        first, last = min(due["second"])[0], max(due["second"])[0]
        run.expect(first < change * 1000 <= last, "the change is not within the due times")
        run.expect(change * 1000 in {at for at, _ in due["minute"]}, "no minute at the change")

    run.checks.append(check)


def _add(queue: Any, name: str, misfire: str = "fire_all", **times: Any):
    queue.schedulers.upsert(name, misfire=misfire, template=("plain", name), **times)


def _kill_leaders(run: ChaosRun):
    for _ in run.faults(2, every=3, progress=10):
        # worker_target.py puts the name of the process into that of the holder.
        holder = str(run.client.execute("GET", run.key("lock:schedules")) or "").removeprefix("done:")
        names = [worker.name for worker in run.fleet.workers]
        name = holder.partition("-")[0]
        index = names.index(name) if name in names else run.random.randrange(len(names))
        victim = run.fleet.workers.pop(index)
        victim.kill()
        run.fleet.replace_worker(victim)


def _finish(run: ChaosRun, names: tuple[str, ...]):
    run.fleet.workers[-1].wait_ready()
    run.progress(10, 10)
    with run.queue() as queue:
        for name in names:
            queue.schedulers.remove(name)


def _due_times(run: ChaosRun) -> dict[str, list[tuple[int, int]]]:
    """Return due time and time of the add of each job, by scheduler."""
    due: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for key in run.client.keys(run.key("job:*")):
        record = run.client.hash(key)
        if "scheduledFor" in record:
            run.adopt(key.rpartition(":")[2], "plain")
            due[json.loads(record["data"])].append(
                (int(float(record["scheduledFor"])), int(float(record["timestamp"])))
            )
    return due


def _each_once(run: ChaosRun, name: str, found: list[tuple[int, int]], step: int):
    times = sorted(at for at, _ in found)
    run.expect(times, f"scheduler {name}: no job")
    twice = [at for at, count in Counter(times).items() if count > 1]
    run.expect(not twice, f"scheduler {name}: added twice for {twice[:5]}")
    gaps = [late - early for early, late in pairwise(times) if late - early != step]
    run.expect(not gaps, f"scheduler {name}: gaps of {gaps[:5]} ms")
    run.note(f"scheduler {name}: {len(times)} due times, each once")
