"""Two gateways on one server, and connections to them."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from glidemq_py import Queue
from glidemq_py.gateway import Gateway
from tests.bench.bunqueue import BunqueuePackages, find_bunqueue
from tests.bench.install import PeerMissingError
from tests.inside import lease_exchange
from tests.server.gateway.wire import Wire


@pytest.fixture
async def gateways(url: str) -> AsyncIterator[tuple[Gateway, Gateway]]:
    """Two gateways side by side."""
    async with Gateway(url, port=0) as first, Gateway(url, port=0) as second:
        yield first, second


@pytest.fixture
def gateway(gateways: tuple[Gateway, Gateway]) -> Gateway:
    """The gateway of `wire`."""
    return gateways[0]


@pytest.fixture
async def wire(gateways: tuple[Gateway, Gateway]) -> AsyncIterator[Wire]:
    async with Wire(gateways[0]) as wire:
        yield wire


@pytest.fixture
async def other(gateways: tuple[Gateway, Gateway]) -> AsyncIterator[Wire]:
    """A connection to the other gateway."""
    async with Wire(gateways[1]) as wire:
        yield wire


@pytest.fixture
async def queue(url: str, queue_name: str) -> AsyncIterator[Queue]:
    async with Queue(queue_name, url) as queue:
        yield queue


class Exchanges(list[tuple[int, int]]):
    """(reports, wanted jobs) of each exchange."""

    def tally(self) -> tuple[int, ...]:
        """Return how many, and the sums."""
        return len(self), *map(sum, zip(*self, strict=True))


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> Exchanges:
    sent = Exchanges()
    exchange: Any = lease_exchange.exchange_call

    def counted(queue: Any, link: Any, reports: Any, fetch: Any, channel: Any) -> Any:
        sent.append((len(reports), 0 if fetch is None else fetch.count))
        return exchange(queue, link, reports, fetch, channel)

    monkeypatch.setattr(lease_exchange, "exchange_call", counted)
    return sent


@pytest.fixture(scope="module")
def packages() -> BunqueuePackages:
    try:
        return find_bunqueue()
    except PeerMissingError as error:
        pytest.skip(str(error))
