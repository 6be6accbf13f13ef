"""Partitions trade their shares of the queue's concurrency: together they never exceed it, also if a process stops."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import GlideMQValidationError, Queue, Worker, sync
from glidemq_py._api import partitioned_changes, partitioned_limits
from glidemq_py._api.partitioned_limits import trade_shares
from glidemq_py._core.calls import Call
from glidemq_py._core.layout_errors import LayoutChangedError
from glidemq_py._features.limits import queue_api as limiting
from glidemq_py._features.partitions import share_round, share_trading
from glidemq_py._features.partitions.share_round import RoundEnd, RoundResult, ShareRound
from glidemq_py._features.partitions.shares import UNLIMITED, fence_share
from glidemq_py._worker.lanes import Lanes
from glidemq_py.testing import RespClient
from tests.server.shares_support import Counted, Shares, fill, limited, parts
from tests.server.worker_support import until, with_timeout

LOCK_MS = 1_000
"""Lock duration of the workers: they send three heartbeats in this time, which report the layout."""


@pytest.fixture(autouse=True)
def quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trade ten times as often."""
    monkeypatch.setattr(share_round, "_LEAST_PAUSE_MS", 50)


class Stopped(Exception):  # noqa: N818  not an error
    """The process of a round has died."""


async def one_by_one(calls: Iterable[Awaitable[Any]]) -> list[Any]:
    pending = list(calls)
    try:
        return [await pending.pop(0) for _ in range(len(pending))]
    finally:
        for call in pending:
            call.close()  # type: ignore[attr-defined]


def make_round(queue: Queue, before_call: Callable[[int], Awaitable[None]] | None = None) -> ShareRound:
    """Return a round whose calls are made one by one.

    Args:
        queue: The queue.
        before_call: Called with the number of each call, from 0.
    """
    assert queue._partitions is not None
    numbers = iter(range(10_000))

    async def call(each: Call[Any]) -> Any:
        if before_call is not None:
            await before_call(next(numbers))
        return await queue._transport.call(each)

    metas = [part._keys.meta for part in parts(queue)]
    return ShareRound(metas, queue._partitions.layout.number, call, one_by_one)


# -- what partitions get ---------------------------------------------------------------------------------------


async def test_a_busy_partition_gets_the_limit_and_gives_it_back(url: str, queue_name: str):
    handler = Counted(8)
    handler.gate.clear()
    async with limited(url, queue_name, 8) as queue:
        assert await Shares(queue).all() == [2, 2, 2, 2]
        await fill(queue, 1, 150)
        async with Worker(queue_name, handler, url, concurrency=20):
            await with_timeout(until(lambda: handler.running[1] == 7))  # partition 0 keeps one
            await fill(queue, 3, 30)
            handler.seconds = lambda: 0.01
            handler.gate.set()
            await with_timeout(until(lambda: handler.running[3] >= 3))
            assert handler.done < 150
            await with_timeout(until(lambda: handler.done == 180))
        assert handler.most == 7
        assert await queue.get_global_concurrency() == 8


async def test_partition_0_can_use_the_whole_limit(url: str, queue_name: str):
    handler = Counted(4)
    handler.gate.clear()
    async with limited(url, queue_name, 4) as queue:
        await fill(queue, 0, 10)
        async with Worker(queue_name, handler, url, concurrency=20):
            await with_timeout(until(lambda: handler.running[0] == 4))
            handler.gate.set()
            await with_timeout(until(lambda: handler.done == 10))


async def test_without_a_lack_nothing_is_traded(url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch):
    rounds: list[Any] = []
    monkeypatch.setattr(share_trading.ShareTrading, "request", lambda self: rounds.append(self))
    handler = Counted(400)
    async with limited(url, queue_name, 400) as queue, Worker(queue_name, handler, url, concurrency=20):
        for partition in range(4):
            await fill(queue, partition, 50)
        await with_timeout(until(lambda: handler.done == 200))
        assert await Shares(queue).all() == [100] * 4
    async with Queue(f"{queue_name}-rate", url, partitions=2) as queue:
        await queue.set_global_rate_limit(2, 100)
        await fill(queue, 0, 3)
        async with Worker(queue.name, handler, url, concurrency=20):
            await with_timeout(until(lambda: handler.done == 203))
    assert not rounds


async def test_trading_ends_with_the_lack(url: str, queue_name: str):
    handler = Counted(4)
    async with limited(url, queue_name, 4) as queue:
        await fill(queue, 2, 60)
        handler.seconds = lambda: 0.005
        async with Worker(queue_name, handler, url, concurrency=20) as worker:
            await with_timeout(until(lambda: handler.done == 60))
            lanes = worker._life.parts
            assert isinstance(lanes, Lanes)
            (trader,) = lanes._shared.traders.values()
            await with_timeout(until(lambda: trader._task is not None and trader._task.done()))


@pytest.mark.parametrize("partitions", [3])
async def test_leases_trade_too(url: str, queue_name: str, partitions: int):
    async with limited(url, queue_name, 6, partitions) as queue:
        await fill(queue, 1, 10)
        leases = await queue.fetch(10)
        while len(leases) < 5:
            leases += await with_timeout(queue.fetch(10 - len(leases), wait=20_000))
        assert not await queue.fetch(1)
        await queue.complete_leases([(lease, None) for lease in leases])


def test_blocking_code(url: str, queue_name: str):
    with sync.Queue(queue_name, url, partitions=3) as queue:
        queue.set_global_concurrency(6)
        assert queue.get_global_concurrency() == 6
        for _ in range(40):
            queue.add("n")
        leases = queue.fetch(40)
        assert len(leases) == 6
        with pytest.raises(GlideMQValidationError, match="partitions, 3"):
            queue.set_global_concurrency(2)


# -- never more than the limit ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [pytest.param(1), *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 5))])
async def test_random_loads_never_exceed_the_limit(url: str, queue_name: str, seed: int):
    dice = random.Random(seed)
    limit = dice.choice([4, 5, 9])
    handler = Counted(limit)
    handler.seconds = lambda: dice.choice([0, 0, 0.002, 0.01, 0.05])
    total = 0
    async with limited(url, queue_name, limit) as queue:
        workers = [Worker(queue_name, handler, url, concurrency=12) for _ in range(2)]
        async with workers[0], workers[1]:
            for _ in range(12):
                count, partition = dice.choice([1, 3, 25]), dice.choice([0, 1, 1, 2, 3])
                await fill(queue, partition, count)
                total += count
                await asyncio.sleep(dice.choice([0, 0.02, 0.1]))
            await with_timeout(until(lambda: handler.done == total))
        assert (await queue.get_job_counts()).completed == total
        assert await Shares(queue).bound() <= limit


@pytest.mark.slow
async def test_the_server_never_has_more_active_jobs(url: str, resp: RespClient, queue_name: str):
    """All partitions are counted in one call of the server."""
    dice = random.Random(7)
    handler = Counted(9)
    handler.seconds = lambda: dice.choice([0, 0.002, 0.01])
    script = """
    local n = 0
    for _, key in ipairs(KEYS) do
      n = n + redis.call('XPENDING', key, 'workers')[1] + tonumber(redis.call('GET', key .. '-list') or '0')
    end
    return n
    """
    async with limited(url, queue_name, 9) as queue:
        streams = [part._keys.stem + "stream" for part in parts(queue)]
        most = 0
        async with Worker(queue_name, handler, url, concurrency=30), Worker(queue_name, handler, url, concurrency=30):
            total = 0
            for _ in range(60):
                count = dice.choice([5, 40])
                await fill(queue, dice.choice([0, 1, 1, 2, 3]), count)
                total += count
                for _ in range(20):
                    most = max(most, await asyncio.to_thread(resp.execute, "EVAL", script, "4", *streams))
            await with_timeout(until(lambda: handler.done == total))
        assert 7 <= most <= 9


# -- rounds that stop or are overtaken -------------------------------------------------------------------------


async def uneven(queue: Queue) -> list[Any]:
    """Let partition 1 run jobs beyond the share that it will have, while 2 and 3 lack one. Return their leases."""
    await fill(queue, 1, 12)
    assert (await make_round(queue).run()).end is RoundEnd.COMPLETE
    assert (await Shares(queue).all())[1] == 7
    leases = await parts(queue)[1].fetch(12)
    assert len(leases) == 7
    await fill(queue, 2, 5)
    await fill(queue, 3, 5)
    return leases


@pytest.mark.parametrize("ended", [0, 3, 7])
async def test_a_round_that_stops_anywhere_leaves_at_most_the_limit(url: str, queue_name: str, ended: int):
    stop_at, was_complete = 0, False
    while not was_complete:
        async with limited(url, f"{queue_name}-{stop_at}", 8) as queue:
            leases = await uneven(queue)
            await parts(queue)[1].complete_leases([(lease, None) for lease in leases[:ended]])

            async def stop(number: int) -> None:
                if number == stop_at:  # noqa: B023
                    raise Stopped

            with contextlib.suppress(Stopped):
                was_complete = (await make_round(queue, stop).run()).end is RoundEnd.COMPLETE
            assert await Shares(queue).bound() <= 8
            assert (await make_round(queue).run(spread=True)).end is RoundEnd.COMPLETE
            assert await Shares(queue).bound() == 8, "the next round hands out what is missing"
            stop_at += 1
    assert stop_at > 5


@pytest.mark.parametrize("other", ["round", "limit", "lower limit", "no limit"])
async def test_a_stale_round_changes_nothing(url: str, queue_name: str, other: str):
    """Another round, or a new limit, comes before each call of a round."""
    at, was_complete = 1, False
    while not was_complete:
        async with limited(url, f"{queue_name}-{at}", 8) as queue:
            await uneven(queue)
            found: list[list[int]] = []

            async def intervene(number: int) -> None:
                if number != at:  # noqa: B023
                    return
                if other == "round":
                    assert (await make_round(queue).run(spread=True)).end is RoundEnd.COMPLETE
                else:
                    limit = {"limit": 20, "lower limit": 4, "no limit": 0}[other]
                    await queue.set_global_concurrency(limit)
                found.append(await Shares(queue).all())  # noqa: B023

            result = await make_round(queue, intervene).run()
            was_complete = not found
            assert was_complete or result.end is RoundEnd.OVERTAKEN
            if not was_complete:
                assert await Shares(queue).all() == found[0]
                limit = {"round": 8, "limit": 20, "lower limit": 4, "no limit": 0}[other]
                assert await queue.get_global_concurrency() == limit
                if other == "no limit":
                    assert found[0] == [UNLIMITED] * 4
                else:
                    assert await Shares(queue).bound() == max(limit, 7), "7 jobs are active"
            at += 1
    assert at > 5


async def test_two_rounds_of_one_number_never_both_change_shares(url: str, queue_name: str):
    """A failover of partition 0 has lost the number of a round, and gives it to another one."""
    async with limited(url, queue_name, 8) as queue:
        await uneven(queue)
        link = await parts(queue)[0]._connected()
        others: list[RoundResult] = []

        async def lose(number: int) -> None:
            if number == 4:  # all partitions are fenced
                epoch = await link.transport.command("HGET", link.keys.meta, "shareRound")
                fenced = await link.transport.call(fence_share(parts(queue)[1]._keys.meta, int(epoch)))
                assert fenced.epoch == int(epoch) + 1
                await link.transport.command("HSET", link.keys.meta, "shareRound", str(int(epoch) - 5_000_000))
                others.append(await make_round(queue).run(above=int(epoch)))

        result = await make_round(queue, lose).run()
        assert result.end is RoundEnd.OVERTAKEN
        assert others[0].end is RoundEnd.COMPLETE
        assert await Shares(queue).bound() <= 8


async def test_a_round_comes_too_early(url: str, queue_name: str):
    async with limited(url, queue_name, 8) as queue:
        assert (await make_round(queue).run()).end is RoundEnd.COMPLETE
        early = await make_round(queue).run(pause=60_000)
        assert early.end is RoundEnd.TOO_EARLY
        assert 0 < early.wait <= 60_000
    async with Queue(f"{queue_name}-none", url, partitions=2) as queue:
        assert (await make_round(queue).run()).end is RoundEnd.NO_LIMIT


async def test_a_lowered_limit_starts_no_job_until_enough_have_ended(url: str, queue_name: str):
    async with limited(url, queue_name, 8) as queue:
        leases = await uneven(queue)
        await queue.set_global_concurrency(4)
        assert not await queue.fetch(10)
        await parts(queue)[1].complete_leases([(lease, None) for lease in leases])
        await trade_shares(queue._partitions)  # type: ignore[arg-type]
        assert len(await queue.fetch(10)) == 3, "partition 0 keeps one"


# -- limits that change ----------------------------------------------------------------------------------------


async def test_a_limit_of_a_running_queue_is_not_exceeded_by_what_runs(url: str, queue_name: str):
    """A plain queue with this limit would start nothing either."""
    async with Queue(queue_name, url, partitions=3) as queue:
        for partition in range(3):
            await fill(queue, partition, 10)
        held = await parts(queue)[1].fetch(5)
        await queue.set_global_concurrency(6)
        assert len(await queue.fetch(10)) == 1
        await parts(queue)[1].release_leases(held)
        await queue.set_global_concurrency(0)
        assert len(await queue.fetch(30)) == 29
        assert await Shares(queue).all() == [UNLIMITED] * 3


async def test_a_temporary_limit_ends_everywhere_at_once(url: str, resp: RespClient, queue_name: str):
    async with limited(url, queue_name, 6, 3) as queue:
        for partition in range(3):
            await fill(queue, partition, 20)
        await queue.set_global_concurrency(30, ttl=60_000)
        limits = await queue.get_global_limits()
        assert limits.concurrency == 30
        assert 0 < (limits.concurrency_ttl or 0) <= 60_000
        leases = await queue.fetch(25)
        assert len(leases) == 25
        await queue.set_global_concurrency(30, ttl=1)
        await server_time_passes(queue)
        assert not await queue.fetch(10), "after its end, partitions have no shares; 25 jobs are more than 6"
        assert await queue.get_global_concurrency() == 6
        await queue.complete_leases([(lease, None) for lease in leases])
        await trade_shares(queue._partitions)  # type: ignore[arg-type]
        assert len(await queue.fetch(20)) == 6
        await queue.set_global_concurrency(3, ttl=60_000)
        await queue.set_global_concurrency(0)
        assert (await queue.get_global_limits()).concurrency is None
        assert len(await queue.fetch(60)) == 29


async def server_time_passes(queue: Queue) -> None:
    """Wait until the clock of the server shows two milliseconds more."""
    link = await parts(queue)[0]._connected()

    async def now() -> int:
        seconds, micros = await link.transport.command("TIME")
        return int(seconds) * 1_000 + int(micros) // 1_000

    end = await now() + 2
    while await now() < end:
        pass


async def test_no_limit_for_a_while(url: str, queue_name: str):
    async with limited(url, queue_name, 6, 3) as queue:
        for partition in range(3):
            await fill(queue, partition, 20)
        await queue.set_global_concurrency(0, ttl=60_000)
        limits = await queue.get_global_limits()
        assert limits.concurrency is None
        assert limits.concurrency_ttl is not None
        assert len(await queue.fetch(20)) == 20
        await queue.set_global_concurrency(0, ttl=1)
        await server_time_passes(queue)  # the partitions have got the limit one after the other
        assert not await queue.fetch(1)
        assert await queue.get_global_concurrency() == 6


async def test_a_rate_limit_that_ends_leaves_the_share(url: str, queue_name: str):
    async with limited(url, queue_name, 6, 3) as queue:
        await queue.set_global_rate_limit(300, 1_000, ttl=1)
        await fill(queue, 1, 5)
        assert await Shares(queue).all() == [2, 2, 2]
        assert len(await parts(queue)[1].fetch(5)) == 2


async def test_the_limit_of_one_partition_cannot_be_set(url: str, queue_name: str):
    async with limited(url, queue_name, 6, 3) as queue:
        link = await parts(queue)[1]._connected()
        with pytest.raises(LayoutChangedError):
            await link.transport.call(limiting.limit_queue(link.keys.meta, 5, False))


# -- the number of partitions ----------------------------------------------------------------------------------


async def test_a_client_that_does_not_know_the_partitions_sets_the_limit_of_all(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue, Queue(queue_name, url) as other:
        await queue.add("n")
        await other.add("n")
        await queue.set_partitions(3)
        await other.set_global_concurrency(9)
        assert await Shares(other).all() == [5, 2, 2], "two jobs wait in partition 0"
        await queue.set_partitions(4)
        await other.set_global_concurrency(8)
        assert await queue.get_global_concurrency() == 8
        assert await Shares(queue).all() == [4, 2, 1, 1]


@pytest.mark.slow
async def test_growing_and_shrinking_never_exceed_the_limit(url: str, queue_name: str):
    handler = Counted(6)
    handler.seconds = lambda: random.uniform(0, 0.01)
    async with Queue(queue_name, url) as queue:
        await queue.set_global_concurrency(6)
        total = 0
        async with Worker(queue_name, handler, url, concurrency=20, lock_duration=LOCK_MS) as worker:
            for number in (1, 4, 6, 2):
                if number > 1:
                    assert (await queue.set_partitions(number)).count == number
                    assert await Shares(queue).bound() <= 6
                    await with_timeout(until(lambda: isinstance(worker._life.parts, Lanes)))
                for _ in range(4):
                    await queue.add_bulk([("n", at % 3) for at in range(30)])
                    total += 30
                    await asyncio.sleep(0.02)
            await with_timeout(until(lambda: handler.done == total))
            assert await queue.get_global_concurrency() == 6
        assert 3 <= handler.most <= 6


async def test_a_queue_that_grows_starts_no_job_beyond_the_limit(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue:
        await queue.set_global_concurrency(6)
        await queue.add_bulk([("n", at) for at in range(10)])
        held = await queue.fetch(5)
        await queue.set_partitions(4)
        await queue.add_bulk([("n", at) for at in range(1_000)])
        assert len(await queue.fetch(10)) == 1
        await parts(queue)[0].complete_leases([(lease, None) for lease in held])
        await trade_shares(queue._partitions)  # type: ignore[arg-type]
        assert len(await queue.fetch(10)) == 5


async def test_a_temporary_limit_is_kept_when_the_queue_is_partitioned(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue:
        await queue.set_global_concurrency(50)
        await queue.set_global_concurrency(6, ttl=60_000)
        await queue.add_bulk([("n", at) for at in range(100)])
        await queue.set_partitions(4)
        limits = await queue.get_global_limits()
        assert limits.concurrency == 6
        assert 0 < (limits.concurrency_ttl or 0) <= 60_000
        await queue.set_global_concurrency(6, ttl=1)
        while await queue.get_global_concurrency() != 50:
            pass  # nothing tells that a limit has ended, but its time to live is 1 ms
        await trade_shares(queue._partitions)  # type: ignore[arg-type]
        assert len(await queue.fetch(60)) > 20


async def test_a_change_that_was_interrupted_is_completed_by_trading(
    url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    """The new partitions have no shares yet when the layout is published."""

    async def interrupted(*_: Any, **__: Any) -> None:
        raise Stopped

    async with Queue(queue_name, url) as queue:
        await queue.set_global_concurrency(8)
        await queue.add("n", 0)
        with monkeypatch.context() as patched:
            patched.setattr(partitioned_changes, "trade_shares", interrupted)
            with pytest.raises(Stopped):
                await queue.set_partitions(4)
        assert await Shares(queue).all() == [8, 0, 0, 0]
        await fill(queue, 2, 20)
        handler = Counted(8)
        async with Worker(queue_name, handler, url, concurrency=20):
            await with_timeout(until(lambda: handler.done == 21))
        assert await queue.get_global_concurrency() == 8


async def test_trading_follows_the_layout(url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch):
    """A round of a client with an older layout is rejected."""
    async with limited(url, queue_name, 8, 2) as queue:
        old = make_round(queue)
        await queue.set_partitions(4)
        with pytest.raises(LayoutChangedError):
            await old.run()
        monkeypatch.setattr(partitioned_limits, "_ATTEMPTS", 0)
        with pytest.raises(Exception, match="keep changing the limits"):
            await queue.set_global_concurrency(8)


async def test_a_backup_has_the_limit_but_no_shares(url: str, queue_name: str, tmp_path: Path):
    async with limited(url, queue_name, 8) as queue:
        await uneven(queue)
        await queue.backup(tmp_path)
        await queue.obliterate(force=True)
    async with Queue(queue_name, url) as queue:
        await queue.restore(tmp_path)
        assert await queue.get_global_concurrency() == 8
        assert sum(await Shares(queue).all()) == 8
        assert 6 <= len(await queue.fetch(30)) <= 8


async def test_a_deleted_queue_is_not_created_again(url: str, resp: RespClient, queue_name: str):
    async with limited(url, queue_name, 8) as queue:
        await uneven(queue)
        keys = [part._keys.meta for part in parts(queue)]

        async def obliterate(number: int) -> None:
            if number == 4:
                async with Queue(queue_name, url) as other:
                    await other.obliterate(force=True)

        assert (await make_round(queue, obliterate).run()).end is RoundEnd.OVERTAKEN
        assert [resp.execute("EXISTS", key) for key in keys] == [0] * 4
