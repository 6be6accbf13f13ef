"""The server of the queues is killed and started again while clients use a gateway."""

import asyncio
from collections.abc import Callable

import httpx
import pytest

from glidemq_py import Queue
from glidemq_py.gateway import Gateway
from glidemq_py.testing import ServerProcess
from tests.server.gateway.wire import Wire, failure, good, packed, state_of


async def ready_status(http: httpx.AsyncClient) -> int:
    return (await http.get("/ready")).status_code


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [1, 3])
async def test_clients_continue_after_the_server_is_back(
    restartable_server: Callable[..., ServerProcess], queue_name: str, partitions: int
) -> None:
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
) -> None:
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
) -> None:
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
) -> None:
    server, url = restartable_server(), "http://127.0.0.1:1/"
    gateway = Gateway(server.url, port=0, http_port=0, shutdown_timeout=600, webhook_networks=["127.0.0.0/8"])
    await gateway.start()
    async with Wire(gateway) as wire, Wire(gateway) as busy, httpx.AsyncClient() as http:
        await good(wire, "AddWebhook", url=url, events=["job.pushed"], queue=queue_name)
        await good(busy, "SubscribeEvents", queue=queue_name)
        await good(wire, "PUSH", queue=queue_name, data=1)
        await good(wire, "PULL", queue=queue_name, owner="w")
        async with asyncio.timeout(60):
            while not (await wire.call("Dlq", queue="gateway@webhooks"))["ok"] or gateway.webhooks._worker is None:  # noqa: ASYNC110
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


async def test_errors_of_a_full_server(private_server: Callable[..., ServerProcess], queue_name: str) -> None:
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
