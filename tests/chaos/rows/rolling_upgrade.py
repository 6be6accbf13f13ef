"""A rolling upgrade under load, a rollback, another upgrade; then the queue uses a feature of the newer build."""

from pathlib import Path

from glidemq_py.errors import UnsupportedFeatureError
from tests.chaos.fleet import Party
from tests.chaos.other_build import FEATURE, other_build
from tests.chaos.run import ChaosRun
from tests.chaos.settings import FEATURED, KINDS

NUMBER = 5
TITLE = "rolling upgrade, rollback, upgrade; then an older build must refuse the queue,"
VARIANTS = ("workers_first", "producers_first")
DAY_MS = 86_400_000
WORKERS, PRODUCERS = 2, 2
PLAIN = tuple(kind for kind in KINDS if kind not in FEATURED)
"""The row replaces the list of features by its own."""


class _Upgrade:
    """Replaces the processes of a fleet by those of another build, one after another."""

    def __init__(self, run: ChaosRun):
        self._run = run
        # A job stranded by a stopped worker would not be recovered for a day.
        self.options = {"lock_duration": DAY_MS, "stalled_interval": 1_000}
        for _ in range(WORKERS):
            run.fleet.worker(options=self.options)
        for worker in run.fleet.workers:
            worker.wait_ready()
        for _ in range(PRODUCERS if run.long else 1):
            run.fleet.producer(rate=25, kinds=PLAIN)

    def workers(self, build: Path | None):
        run = self._run
        for worker in _alive(run.fleet.workers):
            worker.wait_ready()
            worker.stop()
            run.fleet.worker(options=self.options, python_path=_text(build))
            run.expect(run.progress(20), f"no job is completed while workers are replaced by those of {build}")

    def producers(self, build: Path | None):
        run = self._run
        for producer in _alive(run.fleet.producers):
            run.fleet.producer(rate=25, kinds=PLAIN, python_path=_text(build)).wait_ready()
            producer.wait_ready()
            run.fleet.finish(producer)
            run.expect(run.progress(20), f"no job is completed while producers are replaced by those of {build}")


def play(run: ChaosRun, variant: str):
    run.start_server()
    run.no_stalls = True
    upgrade = _Upgrade(run)
    newer = other_build(run.folder / "newer", newer=True)
    steps = (upgrade.workers, upgrade.producers)
    rounds = 0
    for number in run.faults(2, every=2, progress=20, least=2):
        for replace in steps if variant == "workers_first" else steps[::-1]:
            replace((newer, None)[number % 2])
        rounds += 1
    for replace in (upgrade.workers, upgrade.producers):
        replace(newer)
    run.client.execute("HSET", run.key("meta"), "features", FEATURE)
    _expect_refused(run, upgrade)
    run.expect(run.progress(20), "the newer build does not work on its queue")
    run.client.execute("HDEL", run.key("meta"), "features")  # the harness is of the older build
    run.fleet.finish_producers(stop=True)
    run.note(f"{rounds + 1} times all processes replaced")


def _expect_refused(run: ChaosRun, upgrade: _Upgrade):
    """Workers and producers of an older build must refuse a queue with a feature of a newer one."""
    with run.queue() as queue:
        try:
            queue.add("plain", job_id="of-an-older-build")
        except UnsupportedFeatureError as error:
            run.expect("9.9" in str(error), f"the refusal of an add names no version: {error}")
        else:
            run.problem("an older build added a job to a queue with a newer feature")
    older = run.fleet.worker(options=upgrade.options)
    code = older.process.wait(90)
    run.expect(code == 1, f"an older build works on a queue with a newer feature (exit code {code})")
    run.expect(any("upgrade to version 9.9" in line for line in older.lines()), "the refusal names no version")


def _alive(parties: list[Party]) -> list[Party]:
    return [party for party in parties if party.alive]


def _text(build: Path | None) -> str | None:
    return None if build is None else str(build)
