"""Names of other systems and events in the documentation, and blocks of the wrong kind."""

import operator
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import Broadcast, BroadcastWorker, FlowProducer, Producer, Queue, QueueEvents, Worker, sync
from glidemq_py.errors import EventLoopError
from tests.inside import event_reader, misuse

ROOT = Path(__file__).parent.parent.parent
Create = Callable[..., Any]


def handle(_: object): ...


def worker(**options: Any) -> Worker:
    return Worker("q", handle, **options)


def broadcast_worker(**options: Any) -> BroadcastWorker:
    return BroadcastWorker("q", handle, subscription="s", **options)


def named(cls: Any) -> Create:
    def create(**options: Any):
        return cls("q", **options)

    return create


OWNERS = (Queue, Producer, Broadcast, QueueEvents, sync.Queue, sync.Producer, sync.Broadcast, sync.QueueEvents)
NAMED = [named(cls) for cls in OWNERS]
CREATE: list[Create] = [*NAMED, FlowProducer, sync.FlowProducer, worker, broadcast_worker]
IDS = [
    "Queue", "Producer", "Broadcast", "QueueEvents", "sync.Queue", "sync.Producer", "sync.Broadcast",
    "sync.QueueEvents", "FlowProducer", "sync.FlowProducer", "Worker", "BroadcastWorker",
]  # fmt: skip


MIGRATION = {
    "dramatiq": ("max_retries", "min_backoff", "max_age", "time_limit", "throws", "store_results", "pipe_target"),
    "celery": ("countdown", "eta", "expires", "max_retries", "time_limit", "soft_time_limit", "ignore_result"),
    "rq": ("at_front", "job_timeout", "result_ttl", "failure_ttl", "is_async", "on_success", "meta"),
    "arq": ("_defer_by", "_defer_until", "_expires", "max_tries", "keep_result", "max_jobs", "on_startup", "functions"),
    "glide-mq": ("prefetch", "blockTimeout", "promotionInterval", "globalConcurrency"),
    "bullmq": ("failParentOnFailure", "ignoreDependencyOnFailure", "autorun", "keepLogs"),
}


@pytest.mark.parametrize("system", MIGRATION)
def test_migration_pages_have_the_names(system: str):
    page = (ROOT / f"docs/migrate/from-{system}.md").read_text(encoding="utf-8")
    for name in MIGRATION[system]:
        assert name in page
        plain = re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower().strip("_")
        assert any(plain in names for names in misuse.FOREIGN_NAMES.values()), name


@pytest.mark.parametrize(("create", "name"), [*zip(CREATE, IDS, strict=True)], ids=IDS)
async def test_wrong_kind_of_block_is_explained(create: Create, name: str):
    made = create()
    if name.startswith("sync."):
        with pytest.raises(EventLoopError, match="use 'with' instead of 'async with'") as caught:
            async with made:
                raise AssertionError
    else:
        with pytest.raises(EventLoopError, match="use 'async with' instead of 'with'") as caught, made:
            raise AssertionError
    assert isinstance(caught.value, RuntimeError)
    assert name.removeprefix("sync.") in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_every_event_of_the_library_is_known():
    """Compare the names in the code and in the documentation."""
    found: set[str] = set()
    for path in (ROOT / "lua").rglob("*.lua"):
        found |= set(re.findall(r"emit\([^,()]+, '([a-z-]+)'", path.read_text(encoding="utf-8")))
    assert len(found) > 15
    assert found <= set(event_reader.QUEUE_EVENTS)
    page = (ROOT / "docs/learn/events.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`([a-z-]+)`", "\n".join(row.split("|")[1] for row in page.splitlines() if "|" in row)))
    assert set(event_reader.QUEUE_EVENTS) <= listed
    for event in event_reader.QUEUE_EVENTS:
        QueueEvents("q").on(event, handle)


@pytest.mark.parametrize("kind", [Queue, sync.Queue])
def test_former_names_name_the_new_ones(kind: type[Any]):
    page = (ROOT / "docs" / "migrate" / "from-glide-mq.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"\| `(\w+)` (?=\| `([\w.]+)` \|)", page))
    assert len(misuse.MOVED.items() - listed) == 5  # of Node only
    queue = kind("q")
    for former, place in misuse.MOVED.items():
        with pytest.raises(AttributeError, match=rf"no attribute '{former}'; use queue\.{re.escape(place)}$"):
            getattr(queue, former)
        assert callable(operator.attrgetter(place.partition("(")[0])(queue))
    for former, hint in (
        ("upsertJobScheduler", "schedulers.upsert"),
        ("getJob", "get_job"),
    ):
        with pytest.raises(AttributeError, match=rf"; use queue\.{hint}$"):
            getattr(queue, former)
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'$"):
        queue.nothing  # noqa: B018
    assert not hasattr(queue, "set_timeline")
