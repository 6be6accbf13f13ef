"""A rolling upgrade under load, and its rollback; then the queue uses a feature of the newer build."""

from tests.chaos.other_build import FEATURE, other_build
from tests.chaos.run import ChaosRun

NUMBER = 5
TITLE = "rolling upgrade and rollback; then an older build must refuse the queue"
DAY_MS = 86_400_000


def play(run: ChaosRun) -> None:
    run.start_server()
    # A job stranded by a stopped worker would not be recovered for a day.
    options = {"lock_duration": DAY_MS, "stalled_interval": 1_000}
    run.no_stalls = True
    newer = str(other_build(run.folder / "newer", newer=True))
    for _ in range(2):
        run.fleet.worker(options=options)
    for worker in run.fleet.workers:
        worker.wait_ready()
    older_producer = run.fleet.producer(rate=50)
    run.fleet.producer(rate=50, python_path=newer)
    steps = (newer, None)
    for number in run.faults(len(steps), every=5, progress=20):
        build = steps[number % len(steps)]
        for worker in [worker for worker in run.fleet.workers if worker.alive]:
            worker.wait_ready()
            worker.stop()
            run.fleet.worker(options=options, python_path=build)
            run.expect(run.progress(20, 60), "no job is completed during the upgrade")
    run.fleet.finish(older_producer)
    for worker in [worker for worker in run.fleet.workers if worker.alive]:
        worker.wait_ready()
        worker.stop()
    run.fleet.worker(options=options, python_path=newer).wait_ready()
    run.client.execute("HSET", run.key("meta"), "features", FEATURE)
    older = run.fleet.worker(options=options)
    code = older.process.wait(90)
    run.expect(code == 1, f"an older build works on a queue with a newer feature (exit code {code})")
    run.expect(any("upgrade to version 9.9" in line for line in older.lines()), "the refusal names no version")
    run.expect(run.progress(20, 60), "the newer build does not work on its queue")
    run.client.execute("HDEL", run.key("meta"), "features")  # the harness is of the older build
    run.fleet.finish_producers(stop=True)
