"""The server of the queues is killed and started again while clients use a gateway."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import httpx
import pytest

from glidemq_py import Queue
from glidemq_py.gateway import Gateway
from glidemq_py.testing import ServerProcess
from tests.server.gateway.wire import Wire, failure, good, packed, state_of
from tests.server.lossy_proxy import LossyProxy

T = TypeVar("T")


async def ready_status(http: httpx.AsyncClient) -> int:
    return (await http.get("/ready")).status_code


def delivers(gateway: Gateway) -> bool:
    """Return whether the worker of the webhooks of a gateway runs."""
    return gateway.webhooks._worker is not None


async def test_lost_reply_to_a_read_or_a_change_of_a_job_is_no_error(server: Any, queue_name: str):
    with LossyProxy(server.url) as proxy:
        async with Gateway(proxy.url, port=0) as gateway, Wire(gateway) as wire:
            added = await good(wire, "PUSH", queue=queue_name, data=1)
            await good(wire, "PULL", queue=queue_name, owner="w", lockTtl=600_000)
            for command, fields in (
                ("GetJob", {}), ("GetState", {}), ("GetResult", {}), ("GetProgress", {}), ("GetChildrenValues", {}),
                ("GetLogs", {}), ("Progress", {"progress": 5}), ("Update", {"data": 2}),
                ("IsPaused", {"queue": queue_name}), ("GetJobCounts", {"queue": queue_name}), ("ListQueues", {}),
            ):  # fmt: skip
                lost = proxy.lost
                proxy.lose("glide:")
                await good(wire, command, **({"id": added["id"]} | fields))
                assert proxy.lost == lost + 1, command
            job = (await good(wire, "GetJob", id=added["id"]))["job"]
            assert (job["data"], job["progress"]) == (2, 5)


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [1, 3])
async def test_clients_continue_after_the_server_is_back(
    restartable_server: Callable[..., ServerProcess], queue_name: str, partitions: int
):
    server = restartable_server()
    url = f"{server.url}?request_timeout=500"
    async with (
        Queue(queue_name, url, partitions=partitions),
        Gateway(url, port=0, http_port=0) as gateway,
        Wire(gateway) as wire,
        Wire(gateway) as polling,
        Wire(gateway) as subscribed,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.http_port}", timeout=60) as http,
    ):
        held = await good(wire, "PUSH", queue=queue_name, data=1)
        token = (await good(wire, "PULL", queue=queue_name, owner="w", lockTtl=600_000))["token"]
        waiting = await good(wire, "PUSH", queue=f"{queue_name}-other", data=2)
        await good(subscribed, "SubscribeEvents", queue=queue_name)
        polling.send(packed({"cmd": "PULL", "queue": queue_name, "owner": "w", "timeout": 60_000, "reqId": "poll"}))
        assert await ready_status(http) == 200

        server.kill()
        async with asyncio.timeout(60):
            while await ready_status(http) != 503:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        answers = [await wire.call(cmd, **fields) for cmd, fields in (
            ("PUSH", {"queue": queue_name, "data": 3}), ("ACK", {"id": held["id"], "token": token}),
            ("GetJobCounts", {"queue": queue_name}), ("PULL", {"queue": f"{queue_name}-other", "owner": "w"}),
        )]  # fmt: skip
        assert [answer["ok"] for answer in answers] == [False] * 4
        assert all(isinstance(answer["error"], str) and answer["error"] for answer in answers)
        assert (await wire.call("Ping"))["ok"] is True
        for path in ("/stats", "/dashboard", "/dashboard/queues", "/queues/summary", "/prometheus"):
            refused = await http.get(path)
            assert (refused.status_code, refused.json()["ok"]) == (503, False)

        server.start()
        async with asyncio.timeout(60):
            while await ready_status(http) != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await good(wire, "ACK", id=held["id"], token=token, result="kept")
        assert (await good(wire, "GetResult", id=held["id"]))["result"] == "kept"
        assert await state_of(wire, waiting["id"]) == "waiting"
        pushed = (await good(wire, "PUSH", queue=queue_name, data=4))["id"]
        polled = await polling.receive()
        assert polled["ok"], polled
        assert polled["job"]["id"] == pushed
        while (await subscribed.receive())["event"]["jobId"] != pushed:
            pass


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [1, 3])
async def test_long_poll_reports_after_its_time_that_the_server_is_gone(
    restartable_server: Callable[..., ServerProcess], queue_name: str, partitions: int
):
    server = restartable_server()
    url = f"{server.url}?request_timeout=500"
    async with (
        Queue(queue_name, url, partitions=partitions), Gateway(url, port=0) as gateway, Wire(gateway) as wire,
    ):  # fmt: skip
        await good(wire, "PULL", queue=queue_name, owner="w")
        server.kill()
        loop = asyncio.get_running_loop()
        start = loop.time()
        answer = await wire.call("PULL", queue=queue_name, owner="w", timeout=2_000)
        assert answer["ok"] is False
        assert 1.9 < loop.time() - start < 20
        server.start()
        wire.send(packed({"cmd": "PULL", "queue": queue_name, "owner": "w", "timeout": 60_000, "reqId": "poll"}))
        async with Wire(gateway) as other, asyncio.timeout(60):
            while not (await other.call("PUSH", queue=queue_name, data=1, jobId=queue_name))["ok"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            polled = await wire.receive()
            assert polled["ok"], polled
            await good(other, "ACK", id=queue_name, token=polled["token"])


async def test_jobs_of_a_connection_that_was_lost_meanwhile_are_released(
    restartable_server: Callable[..., ServerProcess], queue_name: str
):
    """The release fails while the server is gone; the lock expires then."""
    server = restartable_server()
    url = f"{server.url}?request_timeout=500"
    async with Gateway(url, port=0) as gateway, Wire(gateway) as wire:
        async with Wire(gateway) as lost:
            job_id = (await good(lost, "PUSH", queue=queue_name, data=1))["id"]
            await good(lost, "PULL", queue=queue_name, owner="w", lockTtl=1_000)
            server.kill()
        server.start()
        async with asyncio.timeout(90):
            while (pulled := await wire.call("PULL", queue=queue_name, owner="w", timeout=5_000)).get("job") is None:
                pass
        assert pulled["job"]["id"] == job_id


async def test_closing_takes_no_longer_than_its_limit_while_the_server_is_gone(
    restartable_server: Callable[..., ServerProcess], queue_name: str, caplog: pytest.LogCaptureFixture
):
    server, url = restartable_server(), "http://127.0.0.1:1/"
    gateway = Gateway(server.url, port=0, http_port=0, shutdown_timeout=600, webhook_networks=["127.0.0.0/8"])
    await gateway.start()
    async with Wire(gateway) as wire, Wire(gateway) as busy, httpx.AsyncClient() as http:
        await good(wire, "AddWebhook", url=url, events=["job.pushed"], queue=queue_name)
        await good(busy, "SubscribeEvents", queue=queue_name)
        await good(wire, "PUSH", queue=queue_name, data=1)
        await good(wire, "PULL", queue=queue_name, owner="w")
        async with asyncio.timeout(60):
            while not (await wire.call("Dlq", queue="gateway@webhooks"))["ok"] or not delivers(gateway):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        server.kill()
        busy.send(packed({"cmd": "GetJobCounts", "queue": queue_name}))
        counting = asyncio.create_task(http.get(f"http://127.0.0.1:{gateway.http_port}/queues/{queue_name}/counts"))
        await asyncio.sleep(0.02)
        start = asyncio.get_running_loop().time()
        await gateway.close()
        assert asyncio.get_running_loop().time() - start < 3  # of 30 s of a call
        assert await wire.is_closed()
        await asyncio.wait((counting,))
    assert "not all was closed within 0.6 s" in caplog.text


async def test_errors_of_a_full_server(private_server: Callable[..., ServerProcess], queue_name: str):
    """Not only adds fail, so none says that nothing was added."""
    server = private_server(maxmemory_policy="noeviction")
    async with Gateway(server.url, port=0) as gateway, Wire(gateway) as wire:
        await good(wire, "PUSH", queue=queue_name, data=1, maxAttempts=1)
        pulled = await good(wire, "PULL", queue=queue_name, owner="w")
        await good(wire, "FAIL", id=pulled["job"]["id"], token=pulled["token"], error="bad")
        with server.client() as resp:
            resp.execute("CONFIG", "SET", "maxmemory", 1)
        for cmd, fields in (
            ("PUSH", {"data": 2}), ("SubscribeEvents", {}), ("RetryDlq", {}),
            ("RegisterWorker", {"name": "w", "queues": [queue_name]}),
        ):  # fmt: skip
            error = await failure(wire, cmd, **{"queue": queue_name, **fields})
            assert error.startswith("the server is at its maxmemory; the call changed nothing")


async def took(work: Awaitable[T]) -> tuple[float, T]:
    start = asyncio.get_running_loop().time()
    result = await work
    return asyncio.get_running_loop().time() - start, result


REQUEST_S = 1.0
"""The request timeout of the following tests."""


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
async def test_commands_take_the_request_timeout_at_most(
    restartable_server: Callable[..., ServerProcess], queue_name: str, is_killed: bool,
    caplog: pytest.LogCaptureFixture,
):  # fmt: skip
    server = restartable_server()
    url = f"{server.url}?request_timeout={REQUEST_S * 1_000:.0f}"
    async with Gateway(url, port=0, http_port=0) as gateway, AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(Wire(gateway)) for _ in range(10)]
        await good(wires[0], "Cron", queue=queue_name, name=queue_name, data=1, repeatEvery=500)
        await good(wires.pop(), "SubscribeEvents", queue=queue_name)
        for _ in range(3):
            await good(wires[0], "PUSH", queue=f"{queue_name}-2", data=1)
        first, second, third = [
            await good(wires[0], "PULL", queue=f"{queue_name}-2", owner="w", lockTtl=600_000) for _ in range(3)
        ]
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.http_port}", timeout=60)
        )
        if is_killed:
            server.kill()
        else:
            server.pause()
        calls: list[tuple[str, dict[str, Any]]] = [
            ("PUSH", {"queue": queue_name, "data": 3}), ("PUSHB", {"queue": queue_name, "jobs": [{"data": 1}] * 5}),
            ("ACK", {"id": first["job"]["id"], "token": first["token"]}),
            ("ACKB", {"ids": [second["job"]["id"]], "tokens": [second["token"]]}),
            ("FAIL", {"id": third["job"]["id"], "token": third["token"], "error": "x"}),
            ("GetJob", {"id": first["job"]["id"]}), ("GetJobCounts", {"queue": queue_name}),
            ("PULL", {"queue": queue_name, "owner": "w"}), ("ListWebhooks", {}),
        ]  # fmt: skip
        try:
            answered = asyncio.gather(
                *(took(wire.call(cmd, **fields)) for wire, (cmd, fields) in zip(wires, calls, strict=True))
            )
            responses = await asyncio.gather(took(http.get("/stats")), took(http.get("/queues/summary")))
            for (cmd, _), (seconds, answer) in zip(calls, await answered, strict=True):
                assert seconds < REQUEST_S + 0.8, (cmd, answer)
                assert answer["ok"] is False, (cmd, answer)
                if cmd in ("GetJob", "GetJobCounts", "ListWebhooks"):
                    assert "executed" not in answer["error"]
                if is_killed and seconds > REQUEST_S / 2:
                    port = server.url.rpartition(":")[2]
                    assert answer["error"].startswith(f"server 127.0.0.1:{port} cannot be reached"), (cmd, answer)
            for seconds, response in responses:
                assert seconds < REQUEST_S + 0.8
                assert response.status_code == 503
            seconds, answer = await took(wires[0].call("PULL", queue=queue_name, owner="w", timeout=200))
            assert seconds < 0.2 + 0.8, answer
            assert answer["ok"] is False
            seconds, answer = await took(wires[1].call("WaitJob", id=first["job"]["id"], timeout=200))
            assert seconds < 0.2 + 0.8, answer
            while "cannot be reached since" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        finally:
            if is_killed:
                server.start()
            else:
                server.resume()
        async with asyncio.timeout(60):
            while not (await wires[0].call("PUSH", queue=queue_name, data=1))["ok"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        for fetched in (first, third):  # the reports had no effect, or are repeated
            await wires[0].call("ACK", id=fetched["job"]["id"], token=fetched["token"])
            assert await state_of(wires[0], fetched["job"]["id"]) != "active"
    written = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    outage = [line for line in written if line.startswith("server ")]
    assert len(outage) == 2, written
    assert "cannot be reached since" in outage[0]
    assert "reachable again after" in outage[1]
    assert not [line for line in written if "failed" in line and "stalled" not in line], written
    assert not [line for line in written if "delayed" in line], written


async def test_full_server_is_logged_once_by_a_queue_with_cron_jobs(
    private_server: Callable[..., ServerProcess], queue_name: str, caplog: pytest.LogCaptureFixture
):
    server, name = private_server(maxmemory_policy="noeviction"), "glidemq_py._features.schedulers.firing"
    caplog.set_level(logging.DEBUG, name)

    def lines(level: int) -> list[str]:
        return [each.getMessage() for each in caplog.records if each.name == name and each.levelno == level]

    async with Gateway(server.url, port=0) as gateway, Wire(gateway) as wire:
        with server.client() as client:
            await good(wire, "Cron", queue=queue_name, name=queue_name, data=1, repeatEvery=50)
            client.execute("CONFIG", "SET", "maxmemory", "1mb")
            async with asyncio.timeout(20):
                while len(lines(logging.DEBUG)) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            (line,) = lines(logging.WARNING)
            assert line.startswith(f"queue {queue_name!r}: firing schedulers failed: the server is at its maxmemory")
            client.execute("CONFIG", "SET", "maxmemory", "0")
        async with asyncio.timeout(20):
            while len(lines(logging.WARNING)) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert lines(logging.WARNING)[1].startswith(f"queue {queue_name!r}: firing schedulers works again, after ")


@pytest.mark.parametrize("partitions", [1, 2])
async def test_jobs_of_a_fetch_whose_reply_came_too_late_are_released(
    private_server: Callable[..., ServerProcess], queue_name: str, partitions: int
):
    server = private_server()
    async with (
        Queue(queue_name, server.url, partitions=partitions), Gateway(server.url, port=0) as gateway,
        Wire(gateway) as wire, Wire(gateway) as other,
    ):  # fmt: skip
        await good(wire, "PULL", queue=queue_name, owner="w")
        job_id = (await good(wire, "PUSH", queue=queue_name, data=1))["id"]
        server.pause()
        seconds, answer = await took(wire.call("PULL", queue=queue_name, owner="w", timeout=100))
        assert seconds < 0.1 + 1.0  # of 30 s
        assert answer["ok"] is False
        server.resume()
        pulled = await good(other, "PULL", queue=queue_name, owner="o", timeout=10_000)
        assert pulled["job"]["id"] == job_id


@pytest.mark.slow
async def test_read_only_server_is_logged_once_by_each_task(
    restartable_server: Callable[..., ServerProcess], queue_name: str, caplog: pytest.LogCaptureFixture
):
    """As after a failover by Sentinel, when the address still leads to the former primary."""
    server = restartable_server()
    url = f"{server.url}?request_timeout=500"
    tasks = ("reading the webhooks", "heartbeat", "reading events", "reconnecting")

    def levels(text: str) -> list[int]:
        return [each.levelno for each in caplog.records if text in each.getMessage()]

    def has_repeated(task: str) -> bool:
        found = levels(f"{task} failed")
        return logging.WARNING in found and logging.DEBUG in found[found.index(logging.WARNING) :]

    def works_again(task: str) -> bool:
        return logging.WARNING in levels(f"{task} works again")

    async def wait_for_each(condition: Callable[[str], bool]):
        until = time.monotonic() + 60
        while missing := [task for task in tasks if not condition(task)]:
            assert time.monotonic() < until, (condition.__name__, missing, caplog.messages)
            await asyncio.sleep(0.05)

    caplog.set_level(logging.DEBUG, "glidemq_py")
    async with Gateway(url, port=0) as gateway, Wire(gateway) as wire, Wire(gateway) as subscribed:
        await good(wire, "AddWebhook", url="https://example.com/", events=["job.failed"], queue=queue_name)
        await good(subscribed, "SubscribeEvents", queue=queue_name)
        await good(wire, "PUSH", queue=queue_name, data=1)
        async with asyncio.timeout(60):
            while not delivers(gateway):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        with server.client() as client:
            client.execute("REPLICAOF", "127.0.0.1", "1")
            # The server ends reads that block. A reader that is between two reads can go on: a replica serves reads.
            client.execute("CLIENT", "KILL", "TYPE", "normal")
            await wait_for_each(has_repeated)
            client.execute("REPLICAOF", "NO", "ONE")
        await wait_for_each(works_again)
    for task in tasks:
        warned = levels(f"{task} failed").count(logging.WARNING)
        assert 1 <= warned <= 2, task  # readers of events: one per queue
