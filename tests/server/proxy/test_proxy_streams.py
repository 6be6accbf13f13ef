"""Tests of server-sent events of queues and jobs over HTTP."""

import threading
import unittest.mock as mock
from collections.abc import Callable
from typing import Any

import httpx

import glidemq_py
from glidemq_py.testing import RespClient, ServerProcess
from tests.inside import event_reader
from tests.server.proxy.support import frames_of, running_proxy, worked_off


def test_queue_events_are_streamed(http: httpx.Client, base: str):
    with http.stream("GET", f"{base}/events") as first:
        assert first.headers["content-type"].startswith("text/event-stream")
        frames = frames_of(first.iter_lines())
        assert next(frames)[2] == "connected"
        assert next(frames)[2] == "keep-alive"  # by then it listens
        for n in range(2):
            http.post(f"{base}/jobs", json={"name": "n", "data": n})
        seen = [frame for _, frame in zip(range(2), (f for f in frames if f[1]), strict=False)]
    assert [(event, data["jobId"]) for _, event, data in seen] == [("added", "1"), ("added", "2")]
    # A client that reconnects sends its last event id and misses nothing.
    with http.stream("GET", f"{base}/events", headers={"last-event-id": str(seen[0][0])}) as again:
        entry, event, data = next(frame for frame in frames_of(again.iter_lines()) if frame[1])
    assert (entry, event, data["jobId"]) == (seen[1][0], "added", "2")


def test_job_events_end_with_the_job(http: httpx.Client, base: str, queue_name: str, url: str, resp: RespClient):
    async def handle(job: glidemq_py.Job) -> Any:
        await job.update_progress(50)
        await job.stream({"text": "one"})
        await job.stream({"text": "two"})
        return {"a": 1}

    http.post(f"{base}/jobs", json={"name": "other"})
    job = http.post(f"{base}/jobs", json={"name": "n"}).json()["id"]
    assert http.get(f"{base}/jobs/none/events").status_code == 404
    with http.stream("GET", f"{base}/jobs/{job}/events") as live:
        frames = frames_of(live.iter_lines())
        next(frames)
        worked_off(url, handle, queue_name)
        events = [(event, data) for _, event, data in frames if event]
    assert events[0][0] == "added"
    assert {data["jobId"] for _, data in events} == {job}
    assert events[-1][0] == "completed"
    assert events[-1][1]["returnvalue"] == {"a": 1}
    # It has ended: everything at once, and the end.
    late = [frame for frame in frames_of(iter(http.get(f"{base}/jobs/{job}/events").text.splitlines())) if frame[1]]
    assert [event for _, event, _ in late] == [event for event, _ in events]
    resp.execute("DEL", f"glide:{{{queue_name}}}:events")
    (frame,) = [f for f in frames_of(iter(http.get(f"{base}/jobs/{job}/events").text.splitlines())) if f[1]]
    assert (frame[1], frame[2]["returnvalue"]) == ("completed", {"a": 1})
    chunks = [f for f in frames_of(iter(http.get(f"{base}/jobs/{job}/stream").text.splitlines())) if f[0]]
    assert [data["text"] for _, _, data in chunks] == ["one", "two"]
    rest = http.get(f"{base}/jobs/{job}/stream", headers={"last-event-id": str(chunks[0][0])}).text
    assert [data["text"] for entry, _, data in frames_of(iter(rest.splitlines())) if entry] == ["two"]


def test_listeners_share_one_connection(url: str, queue_name: str, http: httpx.Client, base: str):
    def listen(n: int):
        with http.stream("GET", f"{base}/events") as response:
            frames = frames_of(response.iter_lines())
            next(frames)
            next(frames)
            listening.release()
            found.append(next(frame for frame in frames if frame[1])[2]["jobId"])

    found: list[str] = []
    listening = threading.Semaphore(0)
    threads = [threading.Thread(target=listen, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert listening.acquire(timeout=100)
    http.post(f"{base}/jobs", json={"name": "n"})
    for thread in threads:
        thread.join(100)
    assert found == ["1"] * 8


def test_streams_end_when_the_proxy_closes(url: str, queue_name: str):
    with running_proxy(url) as (http, server), http.stream("GET", f"/queues/{queue_name}/events") as response:
        frames = frames_of(response.iter_lines())
        assert next(frames)[2] == "connected"
        server.should_exit = True
        assert list(frames) == []


def test_stream_survives_a_server_outage(private_server: Callable[..., ServerProcess]):
    server = private_server(durable=True)
    with running_proxy(server.url, keep_alive=100) as (http, _), http.stream("GET", "/queues/q/events") as response:
        frames = frames_of(response.iter_lines())
        assert [next(frames)[2] for _ in range(2)] == ["connected", "keep-alive"]  # by then it listens
        server.restart()
        with RespClient.from_url(server.url) as resp:
            resp.execute("XADD", "glide:{q}:events", "*", "event", "added", "jobId", "1")
        assert next(frame for frame in frames if frame[1])[1:] == ("added", {"jobId": "1"})


def test_stream_error_is_the_last_event(url: str, base: str):
    broken = mock.patch.object(event_reader.EventReader, "read", side_effect=RuntimeError("a secret"))
    received: list[str] = []
    options: dict[str, Any] = {"on_error": lambda error, request: received.append(f"{error} {request.url.path}")}
    with running_proxy(url, **options) as (http, _), broken, http.stream("GET", f"{base}/events") as response:
        frames = [frame for frame in frames_of(response.iter_lines()) if frame[1]]
    assert frames == [(None, "error", {"error": "internal error", "code": "internal"})]
    assert received == [f"a secret {base}/events"]
