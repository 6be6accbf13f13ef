"""Partitions of a deleted queue stay deleted, whatever clients that still know its layout send meanwhile or later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from glidemq_py import Queue
from glidemq_py._client.loop_transport import LoopTransport
from glidemq_py._core.layout_errors import LayoutChangedError
from glidemq_py._features.partitions import opening
from glidemq_py._features.partitions.changing import advance_layout, replace_layout
from glidemq_py._features.partitions.layout import partition_of_key
from glidemq_py.testing import RespClient
from tests.server.worker_support import with_timeout

PARTITIONS = 3
Hook = Callable[[], Awaitable[Any]]


def key_of(partition: int) -> str:
    """Return a key whose jobs are in this partition."""
    return next(key for n in range(1_000) if partition_of_key(key := f"k{n}", PARTITIONS) == partition)


def parts(queue: Queue) -> tuple[Queue, ...]:
    assert queue._partitions is not None
    return queue._partitions.queues


@pytest.fixture
def after_deletion(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Hook], None]:
    """Runs something as soon as the partition with this name is deleted, before the rest of the queue is."""
    call = LoopTransport.call

    def begin(name: str, then: Hook) -> None:
        async def calling(self: LoopTransport, request: Any, *args: Any, **options: Any) -> Any:
            reply = await call(self, request, *args, **options)
            if request.function == "obliterate" and f"{{{name}}}" in request.key and reply.status == "done":
                monkeypatch.setattr(LoopTransport, "call", call)
                await then()
            return reply

        monkeypatch.setattr(LoopTransport, "call", calling)

    return begin


After = Callable[[str, Hook], None]


@pytest.fixture
def failover(resp: RespClient) -> Callable[[str], Callable[[], None]]:
    """Copies all keys of a queue or partition; the result restores them, like a failover that has lost later writes."""

    def begin(name: str) -> Callable[[], None]:
        def keys() -> list[str]:
            return resp.keys(f"glide:{{{name}}}:*")

        saved = {key: resp.execute("DUMP", key) for key in keys()}

        def lose() -> None:
            for key in keys():
                resp.execute("DEL", key)
            for key, content in saved.items():
                resp.execute("RESTORE", key, 0, content)

        return lose

    return begin


Failover = Callable[[str], Callable[[], None]]


@asynccontextmanager
async def two_clients(url: str, name: str) -> AsyncGenerator[tuple[Queue, Queue]]:
    """Yield two clients that know the partitions of a queue with a job in each of them."""
    async with Queue(name, url, partitions=PARTITIONS) as queue, Queue(name, url) as other:
        for number in range(PARTITIONS):
            await queue.add("n", ordering={"key": key_of(number)})
        assert await other.count() == PARTITIONS
        yield queue, other


async def assert_new(url: str, name: str, caplog: pytest.LogCaptureFixture, partitions: int = PARTITIONS) -> None:
    """Create the queue, and check that nothing of a deleted one is left."""
    async with Queue(name, url, partitions=partitions) as new:
        assert await new.count() == 0
        assert not await new.is_paused()
        assert [await part.is_paused() for part in parts(new)] == [False] * partitions
        assert (await new.get_partitions()).is_settled
        job = await new.add("n", ordering={"key": key_of(1)})
        fetched = await with_timeout(new.fetch())
        assert [each.job.id for each in fetched] == [job.id]
    assert [each for each in caplog.messages if "had lost a layout" in each] == []


@pytest.mark.parametrize("give", ["url", "cluster_url"])
async def test_adds_and_settings_while_a_queue_is_deleted(
    give: str, request: pytest.FixtureRequest, queue_name: str, after_deletion: After,
    caplog: pytest.LogCaptureFixture,
):  # fmt: skip
    url: str = request.getfixturevalue(give)
    caplog.set_level(logging.WARNING)
    async with two_clients(url, queue_name) as (queue, other):

        async def continue_working() -> None:
            await other.add("n", ordering={"key": key_of(1)})
            await other.pause()

        after_deletion(parts(queue)[1].name, continue_working)
        await queue.obliterate()
    await assert_new(url, queue_name, caplog)


async def test_late_calls_with_a_deleted_layout(url: str, queue_name: str, resp: RespClient):
    async with two_clients(url, queue_name) as (queue, other):
        known, others = parts(other), parts(other)[1:]
        assert other._partitions is not None
        layout = other._partitions.layout
        await queue.obliterate()
        left = resp.keys(f"glide:{{{queue_name}*")
        for part in known:
            with pytest.raises(LayoutChangedError, match="the client used"):
                await part.add("n")
        for part in others:
            with pytest.raises(LayoutChangedError, match=f"the client used {layout.number}"):
                await other._transport.call(advance_layout(part._keys.meta, layout))
        await other._transport.call(replace_layout(other._keys.meta, layout, layout.changed(4)))
        with pytest.raises(LayoutChangedError, match=f"the client used {layout.number}"):
            await other._transport.call(replace_layout(other._keys.meta, None, layout))
        assert resp.keys(f"glide:{{{queue_name}*") == left
        assert {key.rpartition(":")[2] for key in left} == {"deleted-layout"}
        assert len(left) == PARTITIONS
        assert all(0 < int(resp.execute("PTTL", key)) <= 86_400_000 for key in left)


async def test_late_settings_leave_nothing(
    url: str, queue_name: str, resp: RespClient, caplog: pytest.LogCaptureFixture
):
    async with two_clients(url, queue_name) as (queue, other):
        write = parts(other)[2].pause

        async def pause_later() -> None:
            await queue.obliterate()
            await write()

        parts(other)[2].pause = pause_later  # type: ignore[method-assign]
        await other.pause()
        for name in {key.split("}")[0] for key in resp.keys(f"glide:{{{queue_name}~*")}:
            assert [key for key in resp.keys(f"{name}*") if not key.endswith(":deleted-layout")] == []
        assert await other.is_paused()  # a queue of its own, without partitions
        await other.obliterate()
    await assert_new(url, queue_name, caplog)


@pytest.mark.parametrize("change", ["open", "grow", "obliterate"])
async def test_an_interrupted_deletion_is_completed(
    url: str, queue_name: str, after_deletion: After, resp: RespClient, caplog: pytest.LogCaptureFixture, change: str
):
    caplog.set_level(logging.WARNING)
    async with two_clients(url, queue_name) as (queue, other):

        async def stop() -> None:
            raise ConnectionError

        after_deletion(parts(queue)[2].name, stop)
        with pytest.raises(ConnectionError):
            await queue.obliterate()
        names = [part.name for part in parts(queue)]
        assert resp.execute("PTTL", f"glide:{{{queue_name}}}:deleted-layout") == -1
        assert (await other.add("n", ordering={"key": key_of(2)})).id == "2"
        if change == "open":
            assert await other.drain() == 2
            async with Queue(queue_name, url, partitions=PARTITIONS) as new:
                assert await new.count() == 0
                await new.obliterate()
        elif change == "grow":
            assert (await other.set_partitions(PARTITIONS)).count == PARTITIONS
            assert await other.count() == 2
            await other.obliterate()
        else:
            assert await other.obliterate() == 3
        assert [key for name in names for key in resp.keys(f"glide:{{{name}}}:*") if "deleted-layout" not in key] == []
        assert int(resp.execute("PTTL", f"glide:{{{queue_name}}}:deleted-layout")) > 0
    await assert_new(url, queue_name, caplog)


async def test_clients_create_the_partitions_of_a_deleted_queue_together(
    url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The second one has prepared a later layout when the first one creates its own."""
    caplog.set_level(logging.WARNING)
    async with two_clients(url, queue_name) as (queue, _):
        await queue.obliterate()
    copy, prepared, created = opening._copy_settings, asyncio.Event(), asyncio.Event()
    second: list[asyncio.Task[None]] = []

    async def open_and_add() -> None:
        async with Queue(queue_name, url, partitions=PARTITIONS) as new:
            for number in range(PARTITIONS):
                await new.add("n", ordering={"key": key_of(number)})

    async def copying(*args: Any) -> bool:
        is_copied = await copy(*args)
        if second:
            prepared.set()
            await created.wait()
        else:
            second.append(asyncio.create_task(open_and_add()))
            await prepared.wait()
        return is_copied

    monkeypatch.setattr(opening, "_copy_settings", copying)
    await with_timeout(open_and_add())
    created.set()
    await with_timeout(second[0])
    assert not [each for each in caplog.messages if "had lost" in each]
    async with Queue(queue_name, url) as found:
        assert await found.count() == 2 * PARTITIONS


async def test_a_queue_is_created_while_one_of_its_name_is_deleted(
    url: str, queue_name: str, after_deletion: After, caplog: pytest.LogCaptureFixture
):
    """The former queue's partition 0 has jobs yet, so the new one can only be one that grows; it is deleted too."""
    caplog.set_level(logging.WARNING)
    async with two_clients(url, queue_name) as (queue, other):

        async def create() -> None:
            assert (await other.set_partitions(4)).count == 4
            for number in range(4):
                await parts(other)[number].add("n")

        after_deletion(parts(queue)[2].name, create)
        await queue.obliterate()
        assert await other.count() == 0
    await assert_new(url, queue_name, caplog)


async def test_a_partition_that_loses_its_deletion_stays_deleted(
    url: str, queue_name: str, failover: Failover, resp: RespClient, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    async with two_clients(url, queue_name) as (queue, other):
        await queue.pause()
        name = parts(queue)[1].name
        lose = failover(name)
        await queue.obliterate()
        lose()
        job = await other.add("n", ordering={"key": key_of(2)})
        assert job.id == "1"
        assert (await other.get_partitions()).count == 1
        await other.obliterate()
        assert resp.execute("HGET", f"glide:{{{name}}}:meta", "paused") == "1"
    await assert_new(url, queue_name, caplog)
    async with Queue(queue_name, url) as again:
        lose()
        for _ in range(PARTITIONS):
            await again.add("n")
        assert await again.count() == PARTITIONS
        assert (await again.get_partitions()).count == PARTITIONS


async def test_a_queue_that_loses_its_deletion_can_be_used_and_deleted(
    url: str, queue_name: str, failover: Failover, caplog: pytest.LogCaptureFixture
):
    async with two_clients(url, queue_name) as (queue, other):
        lose = failover(queue_name)
        await queue.obliterate()
        lose()
        jobs = [await other.add("n", ordering={"key": key_of(number)}) for number in range(PARTITIONS)]
        assert [job.id for job in jobs] == ["2", "1||1", "2||1"]
        assert "had lost the deletion of the queue" in caplog.text
        assert await other.count() == PARTITIONS + 1
        assert await other.obliterate() == PARTITIONS + 1
    await assert_new(url, queue_name, caplog)


async def test_a_lost_layout_of_a_queue_that_was_created_again_is_restored(
    url: str, queue_name: str, failover: Failover
):
    async with two_clients(url, queue_name) as (queue, other):
        await queue.obliterate()
        await other.add("n")
        lose = failover(queue_name)
        await other.set_partitions(PARTITIONS)
        await other.add("n", ordering={"key": key_of(2)})
        lose()
        async with Queue(queue_name, url, partitions=PARTITIONS) as new:
            assert await new.count() == 2


async def test_a_deleted_queue_grows_again(url: str, queue_name: str, resp: RespClient):
    async with two_clients(url, queue_name) as (queue, other):
        await queue.set_partitions(2)
        await queue.set_global_concurrency(10)
        await queue.obliterate()
        await other.add("n")
        for count in (4, 2, 3):
            assert (await other.set_partitions(count)).count == count
        assert await other.get_global_concurrency() == 0
        assert await other.count() == 1
        await other.obliterate()
        for key in resp.keys(f"glide:{{{queue_name}*"):
            resp.execute("DEL", key)  # a day later
    async with Queue(queue_name, url, partitions=2) as new:
        assert await new.count() == 0


async def test_a_queue_without_partitions_gets_some_while_it_is_deleted(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue, Queue(queue_name, url) as other:
        await queue.add("n")
        connected = queue._check_layout

        async def check(*, always: bool = False) -> None:
            await connected(always=always)
            if always:
                queue._check_layout = connected  # type: ignore[method-assign]
                await other.set_partitions(PARTITIONS)
                await parts(other)[1].add("n")

        queue._check_layout = check  # type: ignore[method-assign]
        assert await queue.obliterate() == 2
        assert (await other.get_partitions()).count == 1
        assert await other.count() == 0
