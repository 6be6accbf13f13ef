"""The leak check itself: it must see what nothing leads to, and only that."""

from glidemq_py.testing import RespClient
from tests.key_leaks import KeyLeaks


def test_unreachable_job_is_a_leak(resp: RespClient, queue_name: str):
    base = f"glide:{{{queue_name}}}"
    leaks = KeyLeaks(resp)
    resp.execute("HSET", f"{base}:meta", "paused", "0")
    resp.execute("ZADD", f"{base}:completed", 1, "1")
    resp.execute("XADD", f"{base}:stream", "*", "jobId", "2", "name", "x")
    resp.execute("RPUSH", f"{base}:lifo", "3")
    for job_id in "1234":
        resp.execute("HSET", f"{base}:job:{job_id}", "id", job_id)
    resp.execute("RPUSH", f"{base}:log:1", "line")
    resp.execute("RPUSH", f"{base}:log:5", "line")
    resp.execute("SET", f"{base}:w:worker", "{}", "PX", 60_000)
    resp.execute("SET", f"{base}:lock", "token")
    assert leaks.found() == [f"{base}:job:4", f"{base}:lock", f"{base}:log:5"]
    leaks.allow("*:lock", "*:log:5")
    assert leaks.found() == [f"{base}:job:4"]
    resp.execute("DEL", *resp.keys(f"{base}:*"))
    assert leaks.found() == []
