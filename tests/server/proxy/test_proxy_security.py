"""Tests that the proxy rejects requests of other sites, and limits connections, half-sent requests and pages."""

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import glidemq_py
from glidemq_py import Queue
from tests.server.proxy.support import running_proxy, worked_off

TOKEN = "a-token-that-is-long-enough"


@pytest.mark.parametrize(("role", "allowed"), [("observer", 1), ("producer", 2), ("operator", 3)])
def test_clients_do_what_their_role_allows(url: str, queue_name: str, role: str, allowed: int):
    with running_proxy(url, role=role) as (http, _):
        requests = (("GET", "counts", None), ("POST", "jobs", {"name": "n"}), ("POST", "pause", None))
        found = [http.request(method, f"/queues/{queue_name}/{path}", json=body) for method, path, body in requests]
    assert [each.is_success for each in found] == [at < allowed for at in range(3)]
    assert {each.status_code for each in found[allowed:]} <= {403}


# -- requests of other sites -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "attacker.example"},  # a name that the attacker has rebound to this address
        {"host": "localhost.attacker.example:80"}, {"host": "127.0.0.1.attacker.example"}, {"host": "[::1].x"},
        {"origin": "https://attacker.example"}, {"origin": "null"}, {"origin": "http://localhost:1"},
        {"origin": "http://[x"}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"},
    ],
)  # fmt: skip
def test_requests_of_other_sites_are_403(http: httpx.Client, base: str, headers: dict[str, str]):
    for method, path in (("POST", "/jobs"), ("GET", "/counts"), ("POST", "/pause")):
        body = {"name": "n"} if path == "/jobs" else None
        found = http.request(method, f"{base}{path}", json=body, headers=headers)
        assert (found.status_code, found.json()["code"]) == (403, "forbidden")
        ((name, value),) = headers.items()
        assert name in found.json()["error"].lower()
        assert repr(value) in found.json()["error"]
    for path in ("/health", "/openapi.json", "/nothing"):
        assert http.get(path, headers=headers).status_code == 403
    counts = http.get(f"{base}/counts").json()
    assert (counts["waiting"], counts["paused"]) == (0, False)


def test_requests_of_the_own_site_are_accepted(http: httpx.Client, base: str):
    own = f"http://127.0.0.1:{http.base_url.port}"
    for headers in (
        {"origin": own, "sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}, {"host": "LOCALHOST:5"},
        {"host": "[::1]:80", "origin": "http://[::1]"}, {"host": "localhost", "origin": "https://localhost:443"},
    ):  # fmt: skip
        assert http.post(f"{base}/pause", headers=headers).status_code == 200


def test_other_names_need_the_option_hosts(url: str, queue_name: str):
    at = f"/queues/{queue_name}/counts"
    with running_proxy(url, hosts=["Queue.example", "[fe80::1]"], allow_anonymous=True) as (http, _):
        for host, status in (
            ("queue.example", 200), ("queue.example:8080", 200), ("[FE80::1]:80", 200), ("localhost", 403), ("", 403),
        ):  # fmt: skip
            assert http.get(at, headers={"host": host}).status_code == status
    with running_proxy(url, hosts=["*"], allow_anonymous=True) as (http, _):
        assert http.get(at, headers={"host": "any.example"}).status_code == 200
        assert http.get(at, headers={"host": "any.example", "origin": "http://other.example"}).status_code == 403


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", None]
)
def test_body_that_is_not_json_is_415(http: httpx.Client, base: str, content_type: str | None):
    headers = {} if content_type is None else {"content-type": content_type}
    for method, path in (("POST", "/jobs"), ("PUT", "/rate-limit"), ("POST", "/drain")):
        found = http.request(method, f"{base}{path}", content=b'{"name": "n"}', headers=headers)
        assert (found.status_code, found.json()["code"]) == (415, "media_type")
    if content_type is not None:
        assert http.post(f"{base}/pause", headers=headers).status_code == 415
    for right in ("application/json", "Application/JSON; charset=utf-8"):
        made = http.post(f"{base}/jobs", content=b'{"name": "n"}', headers={"content-type": right})
        assert made.status_code == 201


# -- connections -----------------------------------------------------------------------------------------------


def connected(http: httpx.Client, content: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", http.base_url.port or 0), timeout=20)
    connection.sendall(content)
    return connection


def read_all(connection: socket.socket) -> bytes:
    """Return everything until the proxy closes the connection."""
    found = b""
    try:
        while part := connection.recv(4_096):
            found += part
    except ConnectionResetError:
        pass
    finally:
        connection.close()
    return found


def test_half_sent_headers_are_closed(url: str):
    with running_proxy(url, limits={"header_timeout": 500}) as (http, _):
        halves = [connected(http, b"POST /queues/q/jobs HTTP/1.1\r\nHost: loc") for _ in range(900)]
        assert [read_all(connection) for connection in halves] == [b""] * 900
        assert http.get("/health").status_code == 200


@pytest.mark.slow
def test_single_bytes_do_not_extend_the_deadline(url: str):
    with running_proxy(url, limits={"header_timeout": 300}) as (http, _):
        slow = connected(http, b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: ")
        slow.settimeout(0.05)
        for _ in range(400):
            try:
                slow.sendall(b"x")
                assert slow.recv(1) == b""
                break
            except TimeoutError:
                continue
            except (ConnectionResetError, BrokenPipeError):
                break
        else:
            raise AssertionError("the connection is still open")
        slow.close()
        # The second request of a connection has a deadline as well.
        second = connected(http, b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\nGET /he")
        assert read_all(second).count(b"HTTP/1.1 200 OK") == 1


def test_idle_connections_are_closed(url: str):
    with running_proxy(url, limits={"header_timeout": 300, "idle_timeout": 300}) as (http, _):
        assert read_all(connected(http)) == b""
        assert b"200 OK" in read_all(connected(http, b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"))


def test_half_sent_body_is_408(url: str, queue_name: str):
    head = f"POST /queues/{queue_name}/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with running_proxy(url, body_timeout=300) as (http, _):
        halves = [connected(http, f'{head}content-length: 99\r\n\r\n{{"name":'.encode()) for _ in range(50)]
        for connection in halves:
            answer = read_all(connection)
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "timeout"
        assert http.get(f"/queues/{queue_name}/counts").json()["waiting"] == 0


def test_body_after_an_early_response_has_a_deadline(url: str):
    with running_proxy(url, tokens=[TOKEN], limits={"header_timeout": 300, "idle_timeout": 60_000}) as (http, _):
        head = b"POST /queues/q/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999\r\n\r\n"
        connection = connected(http, head)
        assert connection.recv(4_096).startswith(b"HTTP/1.1 401 ")
        connection.sendall(b"x")
        read_all(connection)  # until it is closed


def test_connections_are_limited(url: str):
    with running_proxy(url, limits={"max_connections": 3}) as (http, _):
        kept = [connected(http, b"GET /health HTTP/1.1\r\n") for _ in range(3)]
        refused = read_all(connected(http, b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"))
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert json.loads(refused.partition(b"\r\n\r\n")[2]) == {"error": "too many connections", "code": "overloaded"}
        kept[0].sendall(b"host: localhost\r\nconnection: close\r\n\r\n")
        assert b"200 OK" in read_all(kept[0])
        assert http.get("/health").status_code == 200
        for connection in kept[1:]:
            connection.close()


# -- pages -----------------------------------------------------------------------------------------------------


def pages(http: httpx.Client, path: str, name: str = "jobs", **params: Any) -> Iterator[list[Any]]:
    """Yield the pages of a listing until its end."""
    cursor = None
    for _ in range(1_000):
        found = http.get(path, params={**params, **({} if cursor is None else {"cursor": cursor})})
        assert found.status_code == 200, found.text
        yield found.json()[name]
        cursor = found.json()["cursor"]
        if cursor is None:
            return
    raise AssertionError("the listing does not end")


def add_jobs(url: str, queue: str, count: int, data: Any = None, **options: Any):
    async def add():
        async with Queue(queue, url) as queue_:
            await queue_.add_bulk([glidemq_py.JobSpec("n", data, options) for _ in range(count)])

    asyncio.run(add())


def test_pages_are_bounded_by_bytes(url: str, queue_name: str):
    add_jobs(url, queue_name, 150, "x" * 20_000)
    add_jobs(url, queue_name, 3, "y" * 900_000)
    add_jobs(url, queue_name, 40, "z" * 100)
    at = f"/queues/{queue_name}/jobs"
    with running_proxy(url, max_response=500_000) as (http, _):
        found = list(pages(http, at, state="waiting", limit=1_000))
        assert [job["id"] for page in found for job in page] == [str(n) for n in range(1, 194)]
        for page in found:
            assert len(page) == 1 or len(json.dumps(page)) < 550_000
        assert len(found) < 15


def test_default_page_of_large_jobs_is_small(http: httpx.Client, base: str, queue_name: str, url: str):
    add_jobs(url, queue_name, 400, "x" * 100_000)
    found = http.get(f"{base}/jobs", params={"state": "waiting", "limit": 1_000})
    assert 3_500_000 < len(found.content) < 4_500_000
    assert found.json()["cursor"]


def test_deeply_nested_job_is_listed_as_text(http: httpx.Client, base: str, queue_name: str, url: str):
    def nested(levels: int) -> str:
        return "[" * levels + "]" * levels

    async def handle(job: glidemq_py.Job) -> Any:
        return job.data

    add_jobs(url, queue_name, 1)
    for levels in (200, 298):
        body = f'{{"name": "n", "data": {nested(levels)}}}'
        made = http.post(f"{base}/jobs", content=body, headers={"content-type": "application/json"})
        assert made.status_code == 201
    add_jobs(url, queue_name, 1)
    first, shallow, deep, last = http.get(f"{base}/jobs", params={"state": "waiting"}).json()["jobs"]
    assert (first["data"], last["data"]) == (None, None)
    assert shallow["data"] == json.loads(nested(200))
    assert (deep["data"], deep["asText"]) == (nested(298), ["data"])
    assert http.get(f"{base}/jobs/{deep['id']}").json()["data"] == nested(298)
    worked_off(url, handle, queue_name)
    done = http.get(f"{base}/jobs", params={"state": "completed"}).json()["jobs"]
    assert [job["asText"] for job in done if "asText" in job] == [["data", "returnvalue"]]
    assert "event: completed" in http.get(f"{base}/jobs/{deep['id']}/events").text
