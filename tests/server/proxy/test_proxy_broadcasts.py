"""Tests of broadcasts over HTTP."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest

from glidemq_py.proxy.hubs import SubscriptionHub
from tests.server.proxy.support import frames_of, running_proxy


@pytest.fixture
def base(queue_name: str) -> str:
    return f"/broadcast/{queue_name}"


def messages(frames: Iterator[tuple[Any, Any, Any]], count: int) -> list[Any]:
    """Return the next messages."""
    found: list[Any] = []
    while len(found) < count:
        _, event, data = next(frames)
        if event == "message":
            found.append(data)
    return found


def test_each_subscription_receives_all_messages_in_order(http: httpx.Client, base: str):
    at = f"{base}/events"
    with (
        http.stream("GET", at, params={"subscription": "one"}) as one,
        http.stream("GET", at, params={"subscription": "one", "subjects": "a.*,c"}) as some,
        http.stream("GET", at, params={"subscription": "two"}) as two,
    ):
        streams = [frames_of(each.iter_lines()) for each in (one, some, two)]
        for each in streams:
            assert next(each)[2] == "connected"
        for n in range(20):
            http.post(base, json={"subject": "a.b" if n % 2 else "b", "data": n})
        all_of_one = messages(streams[0], 20)
        assert [each["data"] for each in all_of_one] == list(range(20))
        assert set(all_of_one[0]) == {"id", "subject", "data", "timestamp"}
        assert [each["data"] for each in messages(streams[1], 10)] == list(range(1, 20, 2))
        assert [each["data"] for each in messages(streams[2], 20)] == list(range(20))


def test_messages_are_kept_for_a_returning_client(http: httpx.Client, base: str):
    params = {"subscription": "one"}
    with http.stream("GET", f"{base}/events", params=params) as first:
        frames = frames_of(first.iter_lines())
        http.post(base, json={"subject": "s", "data": 1})
        assert messages(frames, 1)[0]["data"] == 1
    for n in (2, 3):
        http.post(base, json={"subject": "s", "data": n})
    with http.stream("GET", f"{base}/events", params=params) as again:
        assert {each["data"] for each in messages(frames_of(again.iter_lines()), 2)} == {2, 3}


async def test_undelivered_message_is_released():
    class PutBackError(Exception):
        pass

    def put_back(when: int):
        raise PutBackError

    handlers: list[Any] = []
    worker: Any = SimpleNamespace(start=AsyncMock(), close=AsyncMock())

    def open_worker(handler: Any) -> Any:
        handlers.append(handler)
        return worker

    hub = SubscriptionHub(open_worker, lambda: None)
    message = SimpleNamespace(id="1", subject="s", data=1, timestamp=2, move_to_delayed=put_back)
    with pytest.raises(PutBackError):
        await handlers[0](message)
    frames = hub.follow(None)
    first = asyncio.ensure_future(anext(frames))
    await asyncio.sleep(0)
    await handlers[0](message)
    assert '"id":"1"' in await first
    await handlers[0](message)  # there is room for one
    handing = asyncio.ensure_future(handlers[0](message))
    await asyncio.sleep(0)
    await frames.aclose()  # type: ignore[attr-defined]
    with pytest.raises(PutBackError):
        await handing
    worker.close.assert_awaited()


def test_streams_end_when_the_proxy_closes(url: str, base: str):
    with running_proxy(url) as (http, server):
        params = {"subscription": "one"}
        with http.stream("GET", f"{base}/events", params=params) as response:
            frames = frames_of(response.iter_lines())
            http.post(base, json={"subject": "s", "data": 1})
            assert messages(frames, 1)[0]["data"] == 1
            server.should_exit = True
            assert [frame for frame in frames if frame[1]] == []
