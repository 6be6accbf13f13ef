"""The rules of docs/operate/permissions.md: they are sufficient, and they list only commands in use."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from glidemq_py import (
    Broadcast,
    BroadcastWorker,
    FlowJob,
    FlowProducer,
    GlideMQError,
    Job,
    LibraryError,
    Message,
    PermissionDeniedError,
    Queue,
    QueueEvents,
    WaitTimeoutError,
    Worker,
    library,
)
from glidemq_py._client.async_transport import AsyncTransport
from glidemq_py._client.library_source import assemble
from glidemq_py._maintenance import libraries as library_sweep
from glidemq_py._maintenance.libraries import UnusedLibrariesTask
from glidemq_py._worker import wake_channel
from glidemq_py._worker.command.arguments import WorkerArguments
from glidemq_py._worker.command.health import check_health
from glidemq_py.testing import RespClient, RespError, ServerProcess

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/operate/permissions.md").read_text(encoding="utf-8")
RULES = {
    name: rule.split()
    for name, rule in re.findall(r"^ACL SETUSER (\w+) on >SECRET (.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
}
LOADING = ["+function|load", "+function|list", "+function|delete"]
UNIMPORTANT = {"client|setinfo", "client|setname", "client|id", "client|unblock", "cluster|info"}
"""Commands that GLIDE sends when it connects, and can do without."""


@pytest.fixture
def place(private_server: Callable[..., ServerProcess]) -> ServerProcess:
    return private_server()


def allow(client: RespClient, user: str, rule: list[str]) -> None:
    client.execute_everywhere("ACL", "SETUSER", user, "reset", "on", ">SECRET", *rule)
    client.execute_everywhere("ACL", "LOG", "RESET")


def as_user(url: str, user: str) -> str:
    return url.replace("://", f"://{user}:SECRET@")


def refused(client: RespClient) -> set[str]:
    """Return the denied commands and keys."""
    entries = [dict(zip(e[::2], e[1::2], strict=True)) for log in client.execute_everywhere("ACL", "LOG") for e in log]
    return {str(entry["object"]) for entry in entries} - UNIMPORTANT


async def produce(url: str) -> None:
    async with Queue("q", url) as queue:
        job = await queue.add("a", {"x": 1})
        await queue.add_bulk([("b", 1)] * 3)
        for options in ({"delay": 50}, {"priority": 3}, {"lifo": True}, {"ttl": 60_000}, {"job_id": "mine"}):
            await queue.add("c", **options)
        assert (await queue.add("c", job_id="mine")).outcome == "duplicate"
        await queue.add("c", job_id="77")
        for mode in ("throttle", "debounce"):
            for _ in range(2):
                await queue.add("d", delay=10_000, deduplication={"id": mode, "mode": mode, "ttl": 60_000})
        bucket = {"capacity": 5, "refill_rate": 1}
        ordering: Any = {"key": "k", "rate_limit": {"max": 1, "duration": 1_000}, "token_bucket": bucket}
        await queue.add("o", ordering=ordering)
        await queue.get_job_counts()
        assert await queue.get_job(job.id) is not None
        for state in ("waiting", "delayed", "prioritized", "completed", "failed", "active"):
            await queue.get_jobs(state)
        assert await job.get_state() == "waiting"
        with pytest.raises(WaitTimeoutError):
            await queue.add_and_wait("w", 1, wait_timeout=50)
    async with FlowProducer(url) as flows:
        for children in (2, 250):  # a single call, and several calls with a flow record
            tree = FlowJob("p", "q", children=[FlowJob("c", f"q{n % 2 or ''}", n) for n in range(children)])
            assert len((await flows.add(tree)).children) == children
            assert (await flows.add(tree, budget={"max_total_tokens": 100})).children


async def work(url: str) -> None:
    async def handle(job: object) -> int:
        await job.log("x")  # type: ignore[attr-defined]
        await job.update_progress(5)  # type: ignore[attr-defined]
        await job.update_data({"y": 1})  # type: ignore[attr-defined]
        if job.name == "fails":  # type: ignore[attr-defined]
            raise ValueError("x")
        if job.name == "long":  # type: ignore[attr-defined]
            await began.put(job)
            await asyncio.Event().wait()
        return 1

    began: asyncio.Queue[object] = asyncio.Queue()
    worker = Worker("q", handle, url, concurrency=3, lock_duration=1_000, stalled_interval=1_000)
    async with Queue("q", url) as queue, worker:
        completed: asyncio.Queue[str] = asyncio.Queue()
        worker.on("completed", lambda job, _: completed.put_nowait(job.id))
        assert await queue.add_and_wait("a", attempts=2) == 1
        assert await queue.add_and_wait("a", delay=20) == 1
        for kept in ({"count": 1, "age": 60}, True):
            removed = await queue.add("a", remove_on_complete=kept)  # type: ignore[arg-type]
            while await completed.get() != removed.id:
                pass
        for options in ({"priority": 2}, {"lifo": True}, {"timeout": 20_000}):
            await (await queue.add("a", **options)).wait_until_finished()
        failed = await queue.add("fails", attempts=2, backoff=10, remove_on_fail={"count": 5})
        with pytest.raises(GlideMQError, match="ValueError"):
            await failed.wait_until_finished()
        await failed.retry()
        library_sweep._registered.clear()
        parts = worker._life.parts
        assert parts is not None
        assert isinstance(parts.link.transport, AsyncTransport)
        await UnusedLibrariesTask(parts.link.transport).sweep()
        await parts.recovery.run_once()
        await parts.fetching.invalidate_pipelined()
        await queue.add("long")
        await began.get()
        await worker.close(force=True)


async def operate(url: str) -> None:
    async with Queue("q", url) as queue, QueueEvents("q", url) as events:
        await queue.pause()
        assert await queue.is_paused()
        await queue.resume()
        await wait_and_stream(queue, url)
        await queue.get_workers()
        assert await queue.remove((await queue.add("gone")).id)
        seen = asyncio.ensure_future(anext(aiter(events)))
        while not seen.done():
            await queue.add("seen")
            await asyncio.wait({seen}, timeout=0.05)
        async for job in queue.iter_jobs("waiting"):
            await job.remove()
        await queue.add("left")
        await queue.obliterate(force=True)


async def wait_and_stream(queue: Queue, url: str) -> None:
    """Use suspension, its timeout, signals, streams, vectors."""

    async def handle(job: Job) -> None:
        await job.stream({"n": 1})
        await job.store_vector("embedding", [0.5])
        await job.wait_for_signal("go", timeout=job.data)

    async with Worker("q", handle, url):
        late, served = await queue.add("late", 50), await queue.add("served", 60_000)
        assert await queue.read_stream(served.id, block=10_000)
        await queue.signal(served.id, "go")
        await served.wait_until_finished()
        with pytest.raises(GlideMQError, match="Suspend timeout exceeded"):
            await late.wait_until_finished()
        assert await queue.get_suspended_jobs() == []


async def broadcast(url: str) -> None:
    async def handle(message: Message) -> str:
        if message.name == "fails" and not message.attempts_made:
            raise ValueError("x")
        return "x"

    worker = BroadcastWorker("b", handle, url, subscription="s", subjects=[">"], lock_duration=1_000, concurrency=3)
    async with Broadcast("b", url, max_messages=5, max_age=60_000) as messages:
        await messages.subscribe("left", "0-0")
        async with worker:
            message_id = await messages.publish("fails", attempts=2, backoff=10)
            await messages.publish("late", delay=20)
            await messages.publish_bulk([("a", n) for n in range(20)])
            assert await messages.get_delivery(message_id or "", "s") is None  # trimmed
            await messages.get_subscriptions()
            parts = worker._life.parts
            assert parts is not None
            await parts.recovery.run_once()
            await parts.fetching.invalidate_pipelined()
            await worker.drain()
        assert await messages.remove_subscription("left")
        await messages.queue.check()
        await messages.queue.obliterate(force=True)


async def everything(url: str) -> None:
    for part in (produce, work, operate, broadcast):
        await part(url)


@pytest.mark.parametrize(
    ("user", "extra", "part"),
    [
        pytest.param("app", LOADING, everything, id="app"),
        pytest.param("app", ["+function|list"], everything, id="app that may not load", marks=pytest.mark.slow),
        pytest.param("producer", [], produce, id="producer"),
    ],
)
async def test_rules_are_sufficient(
    place: ServerProcess, user: str, extra: list[str], part: Callable[[str], Awaitable[None]]
) -> None:
    with place.client() as client:
        allow(client, user, RULES[user] + extra)
        if "+function|load" not in extra:
            client.execute("FUNCTION", "LOAD", assemble().code)
        await part(as_user(place.url, user))
        assert refused(client) == set()


@pytest.mark.parametrize(
    ("command", "what"),
    [
        pytest.param("xreadgroup", "fetching jobs", id="fetching"),
        pytest.param("hset", "reporting results", id="reporting"),
    ],
)
async def test_a_worker_logs_a_missing_permission_once(
    place: ServerProcess, caplog: pytest.LogCaptureFixture, command: str, what: str
) -> None:
    failures, started, gate, done = asyncio.Queue[Exception](), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handle(_: Job[Any, Any]) -> None:
        started.set()
        await gate.wait()

    with place.client() as client:
        allow(client, "app", RULES["app"] + LOADING)
        app = as_user(place.url, "app")
        async with Queue[Any, Any]("q", place.url) as queue, Worker[None]("q", handle, app, concurrency=3) as worker:
            worker.on("completed", lambda *_: done.set())
            worker.on("error", failures.put_nowait)
            if what == "reporting results":
                await queue.add("a")
                async with asyncio.timeout(60):
                    await started.wait()
            client.execute("ACL", "SETUSER", "app", f"-{command}")
            gate.set()
            if what == "fetching jobs":
                await queue.add("a")
            async with asyncio.timeout(60):
                for _ in range(3):
                    assert isinstance(await failures.get(), GlideMQError)
            client.execute("ACL", "SETUSER", "app", f"+{command}")
            async with asyncio.timeout(60):
                await done.wait()
    lines = [record.getMessage() for record in caplog.records if record.levelname != "DEBUG"]
    assert sum(f"queue 'q': {what} failed: " in line and command in line for line in lines) == 1, lines
    ends = [line for line in lines if f"queue 'q': {what} works again, after " in line]
    assert len(ends) == 1, lines
    assert ends[0] in lines[-2:], lines  # reconnecting may end later


async def test_producer_works_after_an_administrator_loads_the_library(place: ServerProcess) -> None:
    """Without `+function|load`: an administrator runs `library load`; the producer cannot change code."""
    with place.client() as client:
        allow(client, "producer", RULES["producer"])
        producer = as_user(place.url, "producer")
        async with Queue("q", producer) as queue:
            with pytest.raises(LibraryError, match=r"glidemq_py\.library load"):
                await queue.add("a")
        assert await asyncio.to_thread(library.main, ["load", "--url", place.url]) == 0
        async with Queue("q", producer) as queue:
            assert (await queue.add("a")).id == "1"
        with RespClient.from_url(producer) as intruder:
            for command in (("LOAD", "REPLACE", assemble().code), ("DELETE", assemble().name), ("FLUSH",)):
                with pytest.raises(RespError, match="NOPERM"):
                    intruder.execute("FUNCTION", *command)


async def test_permission_to_load_allows_replacing_all_code(place: ServerProcess) -> None:
    """The reason to deny producers `+function|load`: functions run with the permissions of their caller."""
    evil = f"#!lua name={assemble().name}\nredis.register_function('{assemble().function('pause')}', function()"
    evil += " return redis.call('SET', 'glide:{q}:secret', 'x') end)"
    with place.client() as client:
        client.execute("FUNCTION", "LOAD", assemble().code)
        allow(client, "producer", [*RULES["producer"], "+function|load", "resetkeys", "~glide:{other}:*"])
        with RespClient.from_url(as_user(place.url, "producer")) as producer:
            producer.execute("FUNCTION", "LOAD", "REPLACE", evil)
        client.execute("FCALL", assemble().function("pause"), 1, "glide:{q}:meta")
        assert client.execute("GET", "glide:{q}:secret") == "x"


@pytest.mark.slow
async def test_short_rule_is_sufficient(place: ServerProcess) -> None:
    found = re.search(r"The shorter `(.*?)`", PAGE)
    assert found is not None
    with place.client() as client:
        keys = [word for word in RULES["app"] if word.startswith("~")]
        allow(client, "app", [*keys, *found[1].split(), *LOADING])
        await everything(as_user(place.url, "app"))
        assert refused(client) == set()


@pytest.mark.slow
async def test_rules_are_sufficient_in_a_cluster(cluster_url: str, cluster_resp: RespClient) -> None:
    extra = ["+ping", "+cluster|slots", "+readonly", "+asking"]
    allow(cluster_resp, "app", [*RULES["app"], *LOADING, *extra])
    try:
        await everything(as_user(cluster_url, "app"))
        assert refused(cluster_resp) == set()
    finally:
        cluster_resp.execute_everywhere("ACL", "DELUSER", "app")


async def test_probe_and_administrator_rules_are_sufficient(
    place: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    with place.client() as client:
        allow(client, "probe", RULES["probe"])
        allow(client, "admin", ["-@all", "+info", "+function|load", "+function|list", "+fcall"])
        admin = as_user(place.url, "admin")
        assert await asyncio.to_thread(library.main, ["load", "--url", admin]) == 0
        assert await asyncio.to_thread(library.main, ["check", "--url", admin]) == 0
        probe = WorkerArguments(check=True, queue="q", url=as_user(place.url, "probe"))
        async with Worker("q", cast("Any", produce), place.url):
            assert await asyncio.to_thread(check_health, probe) == 0
        assert refused(client) == set()


async def test_check_of_an_idle_worker_succeeds_without_permission_to_ping(place: ServerProcess) -> None:
    with place.client() as client:
        client.execute("FUNCTION", "LOAD", assemble().code)
        allow(client, "probe", RULES["probe"])
        probe = WorkerArguments(check=True, queue="idle", url=as_user(place.url, "probe"))
        async with Worker(["idle", "other"], cast("Any", produce), place.url):
            async with asyncio.timeout(30):
                while not (names := client.execute("ZRANGE", "glide:{idle}:workers", 0, -1)):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            for seconds, code in ((80, 0), (100, 1)):
                client.execute("ZADD", "glide:{idle}:workers", int((time.time() - seconds) * 1000), names[0])
                assert await asyncio.to_thread(check_health, probe) == code


async def test_no_client_subscribes_without_permission_for_messages(
    place: ServerProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> None:
        raise AssertionError("GLIDE would log thousands of errors")

    monkeypatch.setattr(wake_channel, "subscribe", fail)
    with place.client() as client:
        client.execute("FUNCTION", "LOAD", assemble().code)
        allow(client, "app", RULES["app"])
        async with Worker(["a", "b"], cast("Any", produce), as_user(place.url, "app")):
            assert "queues are polled instead: permission denied" in caplog.text


async def test_missing_permission_is_named(place: ServerProcess) -> None:
    with place.client() as client:
        client.execute("FUNCTION", "LOAD", assemble().code)
        for missing in ("xadd", "fcall"):
            allow(client, "app", [*RULES["app"], f"-{missing}"])
            async with Queue("q", as_user(place.url, "app")) as queue:
                with pytest.raises(LibraryError, match=rf"{missing}(.|\n)*permissions\.md"):
                    await queue.add("a")


def contents(client: RespClient) -> dict[str, Any]:
    """Return the content of all keys."""
    return {key: read(client, key) for key in sorted(client.execute("KEYS", "*"))}


READS = {
    "string": ("GET", "{}"), "hash": ("HGETALL", "{}"), "list": ("LRANGE", "{}", "0", "-1"), "set": ("SMEMBERS", "{}"),
    "zset": ("ZRANGE", "{}", "0", "-1", "WITHSCORES"), "stream": ("XRANGE", "{}", "-", "+"),
}  # fmt: skip


def read(client: RespClient, key: str) -> Any:
    kind = client.execute("TYPE", key)
    found = client.execute(*(key if word == "{}" else word for word in READS[kind]))
    return kind, sorted(found) if kind == "set" else found


async def fill(url: str) -> dict[str, str]:
    """Add jobs of every kind. Return the id of one job per state."""
    ids: dict[str, str] = {}

    async def handle(job: Job) -> None:
        if job.name == "suspends":
            await job.suspend()
        if job.name == "fails":
            raise ValueError("x")

    async with Queue("q", url) as queue:
        async with Worker("q", handle, url) as worker:
            ended: asyncio.Queue[str] = asyncio.Queue()
            for event in ("completed", "failed", "suspended"):
                worker.on(event, lambda job, *_: ended.put_nowait(job.id))
            for state, name in (("completed", "a"), ("failed", "fails"), ("suspended", "suspends")):
                ids[state] = (await queue.add(name)).id
            for _ in ids:
                await ended.get()
        ordering: Any = {"key": "k", "concurrency": 2}
        ids["waiting"] = (await queue.add("a")).id
        ids["lifo"] = (await queue.add("a", lifo=True)).id
        ids["delayed"] = (await queue.add("a", delay=3_600_000)).id
        ids["prioritized"] = (await queue.add("a", priority=3)).id
        ids["ordered"] = (await queue.add("a", ordering=ordering)).id
        await queue.add_bulk([("x", {})] * 50)
        tree = FlowJob("p", "q", children=[FlowJob("c", "q", n) for n in range(3)])
    async with FlowProducer(url) as flows:
        ids["waiting-children"] = (await flows.add(tree)).job.id
    return ids


JOBS = ("waiting", "lifo", "delayed", "prioritized", "ordered", "failed", "completed", "suspended", "waiting-children")


def for_job(method: str, state: str, *args: int) -> Callable[[Queue, dict[str, str]], Awaitable[Any]]:
    """Return a function that calls a method of the queue with the job in this state."""
    return lambda queue, ids: getattr(queue, method)(ids[state], *args)


OPERATORS: dict[str, Callable[[Queue, dict[str, str]], Awaitable[Any]]] = {
    "obliterate": lambda q, _: q.obliterate(),
    "obliterate by force": lambda q, _: q.obliterate(force=True),
    "obliterate with scan": lambda q, _: q.obliterate(scan=True),
    "drain": lambda q, _: q.drain(),
    "drain delayed": lambda q, _: q.drain(delayed=True),
    "clean completed": lambda q, _: q.clean(0),
    "clean failed": lambda q, _: q.clean(0, state="failed"),
    "retry jobs": lambda q, _: q.retry_jobs(),
    "repair": lambda q, _: q.check(repair=True, recheck_after=0),
    "pause": lambda q, _: q.pause(),
    "signal": lambda q, ids: q.signal(ids["suspended"], "go"),
    "promote": lambda q, ids: q.promote(ids["delayed"]),
    **{f"remove {state}": for_job("remove", state) for state in JOBS},
    **{f"revoke {state}": for_job("revoke", state) for state in JOBS},
    **{f"priority {state}": for_job("change_priority", state, 7) for state in JOBS[:4]},
    **{f"delay {state}": for_job("change_delay", state, 50) for state in JOBS[:4]},
    "retry": lambda q, ids: retry(q, ids["failed"]),
}


async def retry(queue: Queue, job_id: str) -> None:
    job = await queue.get_job(job_id)
    assert job is not None
    await job.retry()


@pytest.mark.slow
async def test_operator_functions_of_a_producer_end_and_change_everything_or_nothing(place: ServerProcess) -> None:
    """A function that lacks a permission in its middle would leave the queue half changed."""
    rejected = set[str]()
    with place.client() as client:
        client.execute("FUNCTION", "LOAD", assemble().code)
        for name, operate in OPERATORS.items():
            client.execute("FLUSHALL")
            ids = await fill(place.url)
            allow(client, "producer", RULES["producer"])
            before = contents(client)
            async with Queue("q", as_user(place.url, "producer")) as queue:
                try:
                    await asyncio.wait_for(operate(queue, ids), 30)
                except LibraryError:
                    rejected.add(name)
                    assert contents(client) == before, name
                else:
                    assert refused(client) == set(), name
    assert rejected >= {"obliterate", "drain", "clean failed", "retry jobs", "remove waiting", "revoke waiting"}


async def test_durable_adds_need_more_commands_and_add_nothing_without_them(place: ServerProcess) -> None:
    with place.client() as client:
        client.execute("CONFIG", "SET", "appendonly", "yes")
        client.execute("FUNCTION", "LOAD", assemble().code)
        allow(client, "producer", RULES["producer"])
        async with Queue("q", as_user(place.url, "producer")) as queue:
            with pytest.raises(PermissionDeniedError, match="waitaof"):
                await queue.add("n", durable=True)
            assert client.keys("*:job:*") == []
            allow(client, "producer", [*RULES["producer"], "+waitaof", "+wait"])
            assert (await queue.add("n", durable=True)).id == "1"


def operator_commands() -> set[str]:
    """Return the commands that the Lua functions of operators require, as rules."""
    source = (ROOT / "lua/core/permissions.lua").read_text(encoding="utf-8")
    listed = source[source.index("local OPERATOR_COMMANDS") : source.index("local function denied")]
    return {command.lower() for command in re.findall(r"'([A-Z]+(?:\|[A-Z]+)?)'", listed)} | {"rename"}


@pytest.mark.slow
async def test_each_missing_permission_rejects_operator_functions(place: ServerProcess) -> None:
    with place.client() as client:
        client.execute("FUNCTION", "LOAD", assemble().code)
        await fill(place.url)
        before = contents(client)
        for missing in sorted(operator_commands()):
            allow(client, "app", [*RULES["app"], f"-{missing}"])
            async with Queue("q", as_user(place.url, "app")) as queue:
                for call in (queue.obliterate, queue.drain, queue.retry_jobs, lambda q=queue: q.clean(0)):
                    with pytest.raises(LibraryError, match="permission"):
                        await call()
            assert contents(client) == before, missing


def test_operator_functions_require_the_commands_that_they_use() -> None:
    """The list of lua/core/permissions.lua is complete: also for the code that operator functions share."""
    lua = ROOT / "lua"
    used = set[str]()
    for path in [*lua.glob("core/**/*.lua"), *lua.glob("features/**/*.lua")]:
        text = re.sub(r"--.*", "", path.read_text(encoding="utf-8"))
        shared = path.parent.name != "functions" or path.name in ("_check.lua", "_reschedule.lua")
        if shared or "G.for_operators(" in text:
            found = re.findall(r"call\(\s*'([A-Z]+)'(?:,\s*'([A-Z]+)')?", text)
            used |= {
                (f"{command}|{name}" if command in ("XGROUP", "XINFO") else command).lower() for command, name in found
            }
    assert used - operator_commands() == ONLY_WORKERS
    assert operator_commands() <= {word[1:] for word in RULES["app"] if word.startswith("+")}


ONLY_WORKERS = {"publish", "rpop", "xreadgroup", "xtrim", "zpopmin"}
"""Commands in shared files that no operator function reaches; a missing permission for PUBLISH is ignored."""


def test_rules_match_the_commands_in_use(place: ServerProcess) -> None:
    with place.client() as client:
        known = {name.lower() for name in client.execute("COMMAND", "LIST")}
    lua = [path for path in (ROOT / "lua").rglob("*.lua") if path.parent.name not in ("wire_library", "clock")]
    texts = [re.sub(r"--.*", "", path.read_text(encoding="utf-8")) for path in lua]
    used = {word.lower() for text in texts for word in re.findall(r"'([A-Z]{3,})'", text)}
    used_by = [path for path in (ROOT / "glidemq_py").rglob("*.py") if "testing" not in path.parts]
    calls = [path.read_text(encoding="utf-8") for path in used_by]
    used |= {word.lower() for text in calls for word in re.findall(r'(?<!_)command\(\s*"([A-Z]+)"', text)}
    used = (used & known) | {"time", "fcall", "scan", "info"}  # the clock's file; sent by GLIDE itself
    # Durable adds in a cluster, many queues, readers of one connection: the page lists them as "also needed".
    # So is what `glidemq doctor` asks about users.
    used -= {"cluster", "publish", "client", "acl"}
    allowed = {word[1:].partition("|")[0] for word in RULES["app"] if word.startswith("+")}
    assert used - allowed == set(), "missing in docs/operate/permissions.md"
    assert allowed - used == set(), "unused: remove from docs/operate/permissions.md"
    assert set(RULES["producer"]) - set(RULES["app"]) == set()
