"""`glidemq` and broadcasts: what is listed, the dead letters of subscriptions, and commands for jobs only."""

from __future__ import annotations

import asyncio

import pytest

from glidemq_py import Broadcast, BroadcastWorker, Message, Queue
from glidemq_py.testing import RespClient
from tests.server.broadcast_support import SUBJECT, fill
from tests.server.cli_support import Shell


@pytest.fixture
def shell(url: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(url, capfd, monkeypatch)


@pytest.fixture
def news(url: str, queue_name: str) -> str:
    """Return the name of a broadcast with three messages, and a dead letter of each of two subscriptions."""
    asyncio.run(fill(url, queue_name))
    return queue_name


def entries_of(shell: Shell, *arguments: str) -> dict[str, str]:
    """Return the ids of the dead-letter entries by subscription."""
    return {each["subscription"]: each["id"] for each in shell("dlq", "ls", *arguments, "--json").json()["entries"]}


def test_dead_letter_queue_of_a_subscription_is_recognized(shell: Shell, news: str) -> None:
    listed = shell("dlq", "ls", f"{news}-audit-dead")
    assert listed.err.endswith(f"it is the dead letter queue of '{news}': glidemq dlq ls {news}\n")


def test_ready_are_the_unread_messages_of_the_slowest_subscription(shell: Shell, url: str, queue_name: str) -> None:
    async def read(_: Message) -> None:
        received.release()

    async def publish() -> None:
        async with Broadcast(queue_name, url) as broadcast:
            worker = BroadcastWorker(queue_name, read, url, subscription="mailer", start_from="0-0")
            async with worker:
                for n in range(3):
                    await broadcast.publish("news", n)
                    await received.acquire()

    async def subscribe() -> None:
        async with Broadcast(queue_name, url) as broadcast:
            await broadcast.subscribe("search", start_from="0-0")

    received = asyncio.Semaphore(0)
    asyncio.run(publish())
    assert shell("queue", "ls", queue_name).lines[1].split() == [queue_name, *"000000", "broadcast"]
    (found,) = shell("queue", "ls", queue_name, "--json").json()
    assert (found["waiting"], found["subscriptions"], found["unread"]) == (3, 1, 0)
    asyncio.run(subscribe())
    (found,) = shell("queue", "ls", queue_name, "--json").json()
    assert (found["waiting"], found["subscriptions"], found["unread"]) == (3, 2, 3)


def test_unread_messages_are_counted_up_to_a_thousand_after_entries_were_deleted(
    shell: Shell, url: str, queue_name: str, resp: RespClient
) -> None:
    """The server reports no lag then."""

    async def publish(number: int) -> None:
        async with Broadcast(queue_name, url) as broadcast:
            await broadcast.subscribe("search", start_from="0-0")
            await broadcast.publish_bulk([("news", n) for n in range(number)])

    asyncio.run(publish(12))
    stream = f"glide:{{{queue_name}}}:stream"
    entries = resp.execute("XRANGE", stream, "-", "+")
    resp.execute("XDEL", stream, entries[5][0])
    (found,) = shell("queue", "ls", queue_name, "--json").json()
    assert found["unread"] == 11
    asyncio.run(publish(1_000))
    (found,) = shell("queue", "ls", queue_name, "--json").json()
    assert found["unread"] is None
    assert ">1,000" in shell("queue", "ls", queue_name).out


def test_messages_are_listed_and_shown(shell: Shell, news: str) -> None:
    listed = shell("job", "ls", news)
    assert listed.lines[0].split() == ["ID", "SUBJECT", "PUBLISHED"]
    assert [line.split()[:2] for line in listed.lines[1:]] == [[str(n), SUBJECT] for n in (1, 2, 3)]
    shown = shell("job", "show", news, "2", "--json").json()
    assert shown["data"]["order"] == 1
    states = {each["subscription"]: each["state"] for each in shown["deliveries"]}
    assert states == {"audit": "failed", "invoices": "failed", "mailer": "completed", "search": "waiting"}
    assert "ConnectionError: tax office is closed" in shell("job", "show", news, "2").out


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        ("job add {} news", "publish(subject, data)"), ("queue drain {} --yes", "max_messages="),
        ("queue drain {} --dry-run", "max_messages="), ("queue clean {} --yes", "glidemq job rm {} ID"),
        ("job cancel {} 1 --yes", "glidemq job rm {} ID"), ("job rm {} --state waiting --yes", "max_age="),
        ("job retry {} 1", "glidemq dlq replay {} ENTRY"), ("job watch {} 1", "glidemq job show {} 1"),
        ("failures ls {}", "glidemq dlq ls {}"), ("failures stats {}", "glidemq dlq ls {}"),
        ("failures retry {}", "glidemq dlq replay {} ENTRY"), ("failures purge {} --yes", "glidemq dlq replay"),
        ("queue metrics {}", "glidemq queue show {}"), ("queue metrics {} --keep 1d", "glidemq queue show {}"),
        ("group limit {} k --concurrency 1", "glidemq queue limits {}"),
        ("group fair {} k --weight 2", "glidemq queue limits {}"),
    ],
)  # fmt: skip
def test_commands_for_jobs_name_what_to_use_instead(
    shell: Shell, url: str, queue_name: str, command: str, instead: str
) -> None:
    async def publish() -> None:
        async with Broadcast(queue_name, url) as broadcast:
            await broadcast.subscribe("search", start_from="0-0")
            await broadcast.publish("news")

    asyncio.run(publish())
    found = shell(*command.format(queue_name).split())
    assert (found.code, found.out) == (1, "")
    assert len(found.err.splitlines()) == 1
    assert found.err.startswith(f"glidemq: {queue_name!r} is a broadcast, which has messages instead of jobs; ")
    assert instead.format(queue_name) in found.err
    (after,) = shell("queue", "ls", queue_name, "--json").json()
    assert (after["waiting"], after["unread"]) == (1, 1)


def test_a_message_is_deleted_by_its_id(shell: Shell, news: str) -> None:
    assert shell("job", "rm", news, "2", "--yes").code == 0
    assert [each["id"] for each in shell("job", "ls", news, "--json").json()["jobs"]] == ["1", "3"]


def test_dead_letters_of_all_subscriptions_are_listed(shell: Shell, news: str) -> None:
    listed = shell("dlq", "ls", news)
    assert listed.lines[0].split() == ["ENTRY", "SUBSCRIPTION", "SUBJECT", "MESSAGE", "ADDED", "ERROR"]
    assert [line.split()[1:4] for line in listed.lines[1:]] == [
        ["audit", SUBJECT, "2"], ["invoices", SUBJECT, "2"],
    ]  # fmt: skip
    assert set(entries_of(shell, news, "--subscription", "audit")) == {"audit"}
    assert "has no dead letters" in shell("dlq", "ls", news, "--subscription", "mailer").err


@pytest.mark.slow
def test_dead_letters_of_one_subscription_are_replayed_and_purged(shell: Shell, url: str, news: str) -> None:
    found = entries_of(shell, news)
    assert shell("dlq", "purge", news, "--all", "--subscription", "audit", "--dry-run").lines == [
        f"would delete the entries of 1 message of broadcast {news!r}"
    ]
    assert shell("dlq", "purge", news, found["audit"], "--subscription", "invoices", "--yes").code == 4
    assert shell("dlq", "purge", news, "--all", "--subscription", "audit", "--yes").code == 0
    assert set(entries_of(shell, news)) == {"invoices"}
    assert shell("dlq", "replay", news, found["invoices"]).lines == [f"delivered 1 message of broadcast {news!r} again"]
    assert entries_of(shell, news) == {}

    async def state() -> object:
        async with Broadcast(news, url) as broadcast:
            return await broadcast.get_delivery("2", "invoices")

    delivery = asyncio.run(state())
    assert delivery is not None
    assert getattr(delivery, "state", None) == "delayed"


def test_all_dead_letters_of_a_broadcast_are_replayed(shell: Shell, news: str) -> None:
    assert shell("dlq", "replay", news, "--all").lines == [f"delivered 2 messages of broadcast {news!r} again"]
    assert entries_of(shell, news) == {}


def test_an_unknown_subscription_is_named_with_those_that_exist(shell: Shell, url: str, news: str) -> None:
    for verb in (("ls",), ("replay", "--all"), ("purge", "--all", "--yes")):
        found = shell("dlq", verb[0], news, *verb[1:], "--subscription", "nope")
        assert found.code == 4
        assert found.err == (
            f"glidemq: broadcast {news!r} has no subscription 'nope'; it has audit, invoices, mailer, search\n"
        )

    async def add() -> None:
        async with Queue(f"{news}-plain", url) as queue:
            await queue.add("a")

    asyncio.run(add())
    found = shell("dlq", "ls", f"{news}-plain", "--subscription", "nope")
    assert (found.code, found.err) == (
        4, f"glidemq: queue '{news}-plain' is not a broadcast: it has no subscriptions\n"
    )  # fmt: skip


def test_doctor_counts_unread_messages(shell: Shell, news: str) -> None:
    assert "3 unread messages and no live worker" in shell("doctor", news).out
