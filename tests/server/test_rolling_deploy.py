"""Builds of several versions share a queue: jobs of all run once, and a queue with a later feature is refused."""

import asyncio
import io
import itertools
import re
import shutil
import signal
import subprocess
import tarfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import Job, Queue, Worker
from glidemq_py.testing import RespClient
from tests.inside import connection_of
from tests.server.command import ROOT, Command
from tests.server.worker_support import WorkerFor

pytestmark = pytest.mark.slow

COMMITS = {"0.1.0": "da16e53ed94f743047f823130a9801c0c0c19eed", "49f5669d": "49f5669de6735478a758a5c86c9dfb5be8ae61bf"}
"""Older builds: that of release 0.1.0, and one before the next release."""
OLD_FIRST = ("0.1.0", "49f5669d", "checkout")
COMMON = ("plain", "delayed", "retried")
"""Jobs that workers of all builds run."""
LISTED: dict[str, dict[str, Any]] = {
    "priority": {"priority": 1},
    "lifo": {"lifo": True},
    "ordered": {"ordering": "key"},
}
"""Jobs without stream entries, the first of which gates its queue (list-ids)."""
DEPLOYS = {
    "old first": (OLD_FIRST, OLD_FIRST, COMMON),
    "new first": (OLD_FIRST[::-1], OLD_FIRST[::-1], COMMON),
    "producers first": (OLD_FIRST[:2], ("checkout", "checkout"), (*COMMON, *LISTED)),
}
ROUNDS, SCHEDULED, ALWAYS = 8, 5, 4
"""Rounds of a producer, jobs of its scheduler, and jobs of each round besides those of the kinds (deploy_party.py)."""
HOUR_MS = 3_600_000
Start = Callable[..., Command]


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return paths for PYTHONPATH, with the files of the wheel of each build."""
    found = {"checkout": ROOT}
    for build, commit in COMMITS.items():
        if shutil.which("git") is None:
            pytest.skip("git is missing, with which the older builds are made")
        command = ["git", "archive", commit, "glidemq_py", "lua"]
        archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
        if archive.returncode:
            pytest.skip(f"the commit {commit} of build {build} is missing: an sdist or a shallow clone")
        folder = tmp_path_factory.mktemp(build)
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4
            files.extractall(folder)
        (folder / "lua").rename(folder / "glidemq_py" / "_lua")
        found[build] = folder
    return found


@pytest.fixture
def start(builds: dict[str, Path], tmp_path: Path, url: str, queue_name: str) -> Iterator[Start]:
    """Return a function that starts a process of a build: deploy_party.py with these arguments."""
    shutil.copy(Path(__file__).with_name("deploy_party.py"), tmp_path)
    started: list[Command] = []

    def start(build: str, *arguments: str) -> Command:
        env: dict[str, str | None] = {"PYTHONPATH": str(builds[build]), "PYTHONDONTWRITEBYTECODE": None}
        started.append(Command(tmp_path, "deploy_party", url, queue_name, *arguments, env=env))
        return started[-1]

    yield start
    for each in started:
        each.__exit__(None, None, None)


def lines(parties: list[Command], kind: str) -> list[list[str]]:
    """Return the words of the lines that begin with a word."""
    return [line.split()[1:] for each in parties for line in each.lines if line.startswith(kind + " ")]


@pytest.mark.usefixtures("clean_check")
@pytest.mark.parametrize("deploy", DEPLOYS)
async def test_builds_replace_each_other(start: Start, url: str, queue_name: str, deploy: str):
    """Each job runs once, whichever builds add and run it."""
    workers: list[Command] = []
    producers: list[Command] = []
    builds_of_workers, builds_of_producers, kinds = DEPLOYS[deploy]
    a_round = len(kinds) + ALWAYS
    for number, build in enumerate(builds_of_workers):
        workers.append(start(build, "work", "30000", "4"))
        await workers[-1].printed("^ready")
        producers.append(start(builds_of_producers[number], "produce", f"p{number}", str(ROUNDS), *kinds))
        await producers[-1].printed("^added", a_round)
    for worker in workers[:-1]:  # all builds work now
        worker.signal(signal.SIGTERM)
        assert await worker.ends() == 0, worker.text
    for producer in producers:
        assert await producer.ends() == 0, producer.text
    expected = len(producers) * (ROUNDS * a_round + SCHEDULED)
    await workers[-1].printed("^done", expected - len(lines(workers[:-1], "done")))
    workers[-1].signal(signal.SIGTERM)
    assert await workers[-1].ends() == 0, workers[-1].text
    done = lines(workers, "done")
    assert Counter(job_id for job_id, *_ in done).most_common(1)[0][1] == 1
    unscheduled = {job_id for job_id, name, *_ in done if name != "scheduled"}
    assert unscheduled == {job_id for (job_id,) in lines(producers, "added")}
    assert Counter(name for _, name, *_ in done)["scheduled"] == len(producers) * SCHEDULED
    assert {result for _, name, _, _, result in done if name == "parent"} == {"[0,1]"}
    ordered = sorted((int(began), int(ended)) for _, name, began, ended, _ in done if name == "ordered")
    assert all(ended <= began for (_, ended), (began, _) in itertools.pairwise(ordered))
    async with Queue(queue_name, url) as queue:
        counts = await queue.get_job_counts()
        assert (counts.completed, counts.failed, counts.waiting, counts.active) == (expected, 0, 0, 0)
        assert await queue.settings.get_features() == {}


async def nothing(_: Job):
    """Complete a job."""


async def fetch_priority_job(queue: Queue):
    await queue.add("n", priority=1)
    async with Worker(queue.name, nothing, connection_of(queue)) as worker:
        await worker.drain()


async def depend(queue: Queue):
    await queue.add("n", depends_on=[await queue.add("n")])


async def lease(queue: Queue):
    await queue.add("n")
    for each in await queue.fetch():
        await each.release()


async def batch(queue: Queue):
    async with await queue.job_batches.create() as opened:
        await opened.add("n")


async def create_partitions(queue: Queue):
    await queue.obliterate()
    async with Queue(queue.name, connection_of(queue), partitions=2) as opened:
        await opened.connect()


async def run_step(queue: Queue):
    async def handle(job: Job):
        await job.run("step", int)

    async with Worker(queue.name, handle, connection_of(queue)):
        await (await queue.add("stepped")).wait_until_finished()


USES: dict[str, Callable[[Queue], Awaitable[object]]] = {
    "leases": lease,
    "dependencies": depend,
    "ranks": lambda queue: queue.add("n", rank=-5),
    "fair-keys": lambda queue: queue.add("n", fair_key="tenant"),
    "fair-defaults": lambda queue: queue.fair_keys.set_defaults(concurrency=2),
    "name-limits": lambda queue: queue.limits.set_for_name("n", concurrency=2),
    "schedule-overlap": lambda queue: queue.schedulers.upsert("s", every=HOUR_MS, overlap="skip"),
    "schedule-workers": lambda queue: queue.schedulers.upsert("s", every=HOUR_MS, skip_without_worker=True),
    "job-batches": batch,
    "partitions": create_partitions,
    "list-ids": fetch_priority_job,
    "steps": run_step,
}


def known_features(build: Path) -> set[str]:
    """Return the features that a build knows."""
    root = build / "glidemq_py" / "_lua"
    path = (root if root.exists() else build / "lua") / "core" / "known_features.lua"
    return set(re.findall(r"\['([\w-]+):[\d.]+'\]", path.read_text(encoding="utf-8")))


async def test_older_builds_refuse_each_feature(
    start: Start, builds: dict[str, Path], url: str, queue_name: str, resp: RespClient
):
    assert set(USES) == known_features(ROOT), "each gated feature needs a use here"

    def content(name: str) -> dict[str, Any]:
        return {key: resp.execute("DUMP", key) for key in sorted(resp.keys(f"glide:{{{name}*"))}

    kept: dict[str, Job] = {}
    before: dict[str, dict[str, Any]] = {}
    for feature, use in USES.items():
        async with Queue(f"{queue_name}-{feature}", url) as queue:
            await use(queue)
            kept[feature] = await queue.add("n", "kept")
            assert feature in await queue.settings.get_features()
        before[feature] = content(queue.name)
    for build in COMMITS:
        unknown = set(USES) - known_features(builds[build])
        names = {f"{queue_name}-{feature}" for feature in unknown}
        party = start(build, "refuse", *sorted(names))
        assert await party.ends() == 0, party.text
        assert not lines([party], "accepted"), f"{build}: {party.text}"
        answers = Counter(name for name, *_ in lines([party], "refused"))
        assert answers == dict.fromkeys(names, 3), f"{build}: {party.text}"
    for feature in USES:
        name = f"{queue_name}-{feature}"
        assert content(name) == before[feature], f"an older build changed a queue with {feature}"
        async with Queue(name, url) as queue, Worker(name, nothing, url):
            job = await queue.get_job(kept[feature].id)
            assert job is not None
            await job.wait_until_finished(timeout=60_000)


@pytest.mark.parametrize(("build", "kind"), [("0.1.0", "priority"), ("0.1.0", "ordered"), ("49f5669d", "lifo")])
async def test_worker_of_an_older_build_closes_and_its_job_is_recovered(
    start: Start, build: str, kind: str, worker_for: WorkerFor, url: str, queue_name: str
):
    """The first job from a list that a worker of this build fetches gates the queue."""
    older = start(build, "work", "1000", "1")
    await older.printed("^ready")
    async with Queue(queue_name, url) as queue:
        held = await queue.add("held")
        await older.printed("^began")
        async with worker_for(nothing, concurrency=4, lock_duration=1_000, stalled_interval=1_000):
            jobs = [held, *await queue.add_bulk([("n", number, LISTED[kind]) for number in range(20)])]
            await asyncio.gather(*(job.wait_until_finished(timeout=60_000) for job in jobs))
            await older.printed("^refused .* list-ids")
        assert await older.ends() == 0, older.text
        assert (await queue.get_job_counts()).completed == 21
