"""Five workers fire schedulers of a second, by interval and by pattern, while one of them is killed every 3 s."""

import json
from collections import Counter
from itertools import pairwise

from tests.chaos.run import ChaosRun

NUMBER = 13
TITLE = "5 schedulers' workers, one killed every 3 s: every due time once"
EVERY_MS = 500


def play(run: ChaosRun) -> None:
    run.start_server()
    options = {"lock_duration": 1_000, "stalled_interval": 1_000}
    with run.queue() as queue:
        queue.upsert_job_scheduler("interval", every=EVERY_MS, misfire="fire_all", template=("plain", "interval"))
        queue.upsert_job_scheduler("pattern", pattern="* * * * * *", misfire="fire_all", template=("plain", "pattern"))
    run.fleet_of(5 if run.long else 3, jobs=50, rate=20, options=options)
    for _ in run.faults(2, every=3, progress=10):
        index = run.random.randrange(len(run.fleet.workers))
        victim = run.fleet.workers.pop(index)
        victim.kill()
        run.fleet.replace_worker(victim)
    run.fleet.workers[-1].wait_ready()
    run.progress(10, 10)
    with run.queue() as queue:
        for name in ("interval", "pattern"):
            queue.remove_job_scheduler(name)

    def check() -> None:
        due: dict[str, Counter[int]] = {"interval": Counter(), "pattern": Counter()}
        for key in run.client.keys(run.key("job:*")):
            record = run.client.hash(key)
            if "scheduledFor" in record:
                run.adopt(key.rpartition(":")[2], "plain")
                due[json.loads(record["data"])][int(float(record["scheduledFor"]))] += 1
        for name, step in (("interval", EVERY_MS), ("pattern", 1_000)):
            times = sorted(due[name])
            run.expect(times, f"scheduler {name}: no job")
            twice = [time for time, count in due[name].items() if count > 1]
            run.expect(not twice, f"scheduler {name}: added twice for {twice[:5]}")
            missing = [late - early for early, late in pairwise(times) if late - early != step]
            run.expect(not missing, f"scheduler {name}: gaps of {missing[:5]} ms")
            run.note(f"scheduler {name}: {len(times)} due times, each once")

    run.checks.append(check)
