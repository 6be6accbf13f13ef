"""The rules of docs/operate/permissions.md: they are sufficient, and they list only commands in use."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import FlowJob, FlowProducer, GlideMQError, Job, Lease, Queue, Worker, library
from glidemq_py.errors import LibraryError, PermissionDeniedError
from glidemq_py.testing import RespClient, RespError, ServerProcess
from tests.inside import assemble, wake_channel
from tests.server.command import checked
from tests.server.worker_support import StartServer

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
def place(private_server: StartServer) -> ServerProcess:
    return private_server()


def allow(client: RespClient, user: str, rule: list[str]):
    client.execute_everywhere("ACL", "SETUSER", user, "reset", "on", ">SECRET", *rule)
    client.execute_everywhere("ACL", "LOG", "RESET")


def as_user(url: str, user: str) -> str:
    return url.replace("://", f"://{user}:SECRET@")


def refused(client: RespClient) -> set[str]:
    """Return the denied commands and keys."""
    entries = [dict(zip(e[::2], e[1::2], strict=True)) for log in client.execute_everywhere("ACL", "LOG") for e in log]
    return {str(entry["object"]) for entry in entries} - UNIMPORTANT


async def nothing(_: Job): ...


@pytest.mark.parametrize(
    ("command", "what"),
    [
        pytest.param("xreadgroup", "fetching jobs", id="fetching"),
        pytest.param("hset", "reporting results", id="reporting"),
    ],
)
async def test_a_worker_logs_a_missing_permission_once(
    place: ServerProcess, caplog: pytest.LogCaptureFixture, command: str, what: str
):
    failures, started, gate, done = asyncio.Queue[Exception](), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handle(_: Job):
        started.set()
        await gate.wait()

    with place.client() as client:
        allow(client, "app", RULES["app"] + LOADING)
        app = as_user(place.url, "app")
        async with Queue("q", place.url) as queue, Worker[None]("q", handle, app, concurrency=3) as worker:
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


async def test_producer_works_after_an_administrator_loads_the_library(place: ServerProcess):
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


async def test_permission_to_load_allows_replacing_all_code(place: ServerProcess):
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


async def test_probe_and_administrator_rules_are_sufficient(place: ServerProcess, capsys: pytest.CaptureFixture[str]):
    with place.client() as client:
        allow(client, "probe", RULES["probe"])
        allow(client, "admin", ["-@all", "+info", "+function|load", "+function|list", "+fcall"])
        admin = as_user(place.url, "admin")
        assert await asyncio.to_thread(library.main, ["load", "--url", admin]) == 0
        assert await asyncio.to_thread(library.main, ["check", "--url", admin]) == 0
        async with Worker("q", nothing, place.url):
            assert await checked("q", as_user(place.url, "probe")) == 0
        assert refused(client) == set()


async def test_check_of_an_idle_worker_succeeds_without_permission_to_ping(place: ServerProcess):
    with place.client() as client:
        client.execute("FUNCTION", "LOAD", assemble().code)
        allow(client, "probe", RULES["probe"])
        async with Worker(["idle", "other"], nothing, place.url):
            async with asyncio.timeout(30):
                while not (names := client.execute("ZRANGE", "glide:{idle}:workers", 0, -1)):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            for seconds, code in ((80, 0), (100, 1)):
                client.execute("ZADD", "glide:{idle}:workers", int((time.time() - seconds) * 1000), names[0])
                assert await checked("idle", as_user(place.url, "probe")) == code


async def test_no_client_subscribes_without_permission_for_messages(
    place: ServerProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async def fail(*_: object):
        raise AssertionError("GLIDE would log thousands of errors")

    monkeypatch.setattr(wake_channel, "subscribe", fail)
    with place.client() as client:
        client.execute("FUNCTION", "LOAD", assemble().code)
        allow(client, "app", RULES["app"])
        async with Worker(["a", "b"], nothing, as_user(place.url, "app")):
            assert "queues are polled instead: permission denied" in caplog.text


async def test_permissions_for_wake_ups_suffice(place: ServerProcess, caplog: pytest.LogCaptureFixture):
    (rule,) = re.findall(r"^\| `(\+publish .*?)` \|", PAGE, flags=re.MULTILINE)
    with place.client() as client:
        client.execute("FUNCTION", "LOAD", assemble().code)
        allow(client, "app", [*RULES["app"], *rule.split()])
        async with Worker(["a", "b"], nothing, as_user(place.url, "app")):
            assert "polled instead" not in caplog.text


async def test_missing_permission_is_named(place: ServerProcess):
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


def read(client: RespClient, key: str):
    kind = client.execute("TYPE", key)
    found = client.execute(*(key if word == "{}" else word for word in READS[kind]))
    return kind, sorted(found) if kind == "set" else found


async def fill(url: str) -> dict[str, str]:
    """Add jobs of every kind. Return the id of one job per state."""
    ids: dict[str, str] = {}

    async def handle(job: Job):
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
    return lambda queue, ids: attrgetter(method)(queue)(ids[state], *args)


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
    **{f"priority {state}": for_job("jobs.change_priority", state, 7) for state in JOBS[:4]},
    **{f"delay {state}": for_job("jobs.change_delay", state, 50) for state in JOBS[:4]},
    "retry": lambda q, ids: retry(q, ids["failed"]),
}


async def retry(queue: Queue, job_id: str):
    job = await queue.get_job(job_id)
    assert job is not None
    await job.retry()


@pytest.mark.slow
async def test_operator_functions_of_a_producer_end_and_change_everything_or_nothing(place: ServerProcess):
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


SOURCES: dict[str, dict[str, Any]] = {
    "stream": {},
    "list": {"lifo": True},
    "priority": {"priority": 7},
    "rank above the priorities": {"rank": 5_000},
    "rank below the priorities": {"rank": -5},
    "fair key": {"fair_key": "k"},
    "limited name": {},
    "ordering group": {"ordering": {"key": "k", "concurrency": 2}},
    "delayed": {"delay": 1},
    "delayed with a rank": {"delay": 1, "rank": 5_000},
    "scheduled by a peer": {"priority": 7},
}
"""Options of a job per place from which jobs are fetched."""


@pytest.mark.parametrize("source", SOURCES)
async def test_only_workers_fetch_and_report_jobs_of_any_source(place: ServerProcess, source: str):
    with place.client() as client:
        client.execute("FUNCTION", "LOAD", assemble().code)
        for role in (others := ("observer", "producer", "operator")):
            allow(client, role, RULES[role])
        allow(client, "worker", RULES["worker"])
        async with AsyncExitStack() as stack:
            queue, worker, *denied = [
                await stack.enter_async_context(Queue("q", url))
                for url in (place.url, *(as_user(place.url, role) for role in ("worker", *others)))
            ]
            if source == "limited name":
                await queue.limits.set_for_name("a", concurrency=5)
            ids = [(await queue.add("a", 1, **SOURCES[source])).id for _ in range(2)]
            if source == "scheduled by a peer":
                for job_id in ids:
                    client.execute("ZREM", "glide:{q}:scheduled", job_id)
                    client.execute("LPUSH", "glide:{q}:priority", job_id)
            (lease,) = await worker.fetch(1, wait=10_000, owner="o")
            before = contents(client)
            for user in denied:
                foreign = Lease.from_token(user, lease.token)
                for call in (
                    lambda user=user: user.fetch(1),
                    lambda foreign=foreign: foreign.complete(1),
                    lambda foreign=foreign: foreign.fail("no"),
                    lambda foreign=foreign: foreign.extend(60_000),
                    lambda foreign=foreign: foreign.release(),
                    lambda user=user: user.leases.release_owner("o"),
                ):
                    with pytest.raises(PermissionDeniedError, match=r"(?i)xreadgroup|hset"):
                        await call()
            assert contents(client) == before
            await lease.complete(1)
            (last,) = await worker.fetch(1, wait=10_000, owner="o")
            await last.complete(1)
            assert {lease.job.id, last.job.id} == set(ids)


async def test_durable_adds_need_more_commands_and_add_nothing_without_them(place: ServerProcess):
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
async def test_each_missing_permission_rejects_operator_functions(place: ServerProcess):
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


def test_operator_functions_require_the_commands_that_they_use():
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


ONLY_WORKERS = {"pttl", "publish", "rpop", "xreadgroup", "xtrim", "zpopmin"}
"""Commands in shared files that no operator function reaches; a missing permission for PUBLISH is ignored."""


def test_rules_match_the_commands_in_use(place: ServerProcess):
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
