"""Invalid values that other programs have stored in the gateway's keys."""

from collections.abc import AsyncIterator

import httpx
import pytest

from glidemq_py.gateway import Gateway
from glidemq_py.testing import RespClient
from tests.server.gateway.wire import Wire, good


@pytest.fixture
async def gateway(url: str, queue_name: str, resp: RespClient) -> AsyncIterator[Gateway]:
    async with Gateway(url, port=0, http_port=0, prefix=queue_name) as gateway:
        yield gateway
    for name in resp.keys(f"{queue_name}:*"):
        resp.execute("DEL", name)


@pytest.fixture
async def wire(gateway: Gateway) -> AsyncIterator[Wire]:
    async with Wire(gateway) as wire:
        yield wire


@pytest.mark.parametrize("number", ["1e400", "NaN", "-1", "1" * 400, '"1"', "null", "[]"])
@pytest.mark.parametrize("field", ["created", "since"])
async def test_ill_formed_webhook_is_ignored(
    wire: Wire, gateway: Gateway, queue_name: str, resp: RespClient, field: str, number: str
):
    times = {"created": "1", "since": "1", field: number}
    numbers = ",".join(f'"{name}":{value}' for name, value in times.items())
    rest = '"url":"http://example.com/","events":["job.pushed"],"queue":null,"secret":null,"enabled":true'
    stored = f"{{{rest},{numbers}}}"
    resp.execute("HSET", f"{queue_name}:gateway:webhooks", "w:x", stored, "revision", "7")
    await good(wire, "AddWebhook", url="https://hooks.invalid/", events=["job.pushed"])
    (listed,) = (await good(wire, "ListWebhooks"))["data"]["webhooks"]
    assert listed["url"] == "https://hooks.invalid/"
    assert len(await gateway.webhooks.registry.all()) == 1


async def test_invalid_member_of_the_list_of_queues(wire: Wire, gateway: Gateway, queue_name: str, resp: RespClient):
    await good(wire, "PUSH", queue="zz", data=1)
    for number in (3, 9):
        resp.execute("SADD", f"{queue_name}:queues:{number}", "bad{q}", "", "x" * 5_000, "a:b")
    assert (await good(wire, "ListQueues"))["queues"] == ["zz"]
    assert (await good(wire, "Stats"))["stats"]["waiting"] == 1
    for cmd in ("CronList", "DashboardOverview", "DashboardQueues", "Prometheus", "ListWorkers", "Metrics"):
        await good(wire, cmd)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.http_port}", timeout=60) as http:
        for path in ("/stats", "/queues/summary", "/dashboard", "/dashboard/queues", "/prometheus", "/crons"):
            assert (await http.get(path)).status_code == 200
