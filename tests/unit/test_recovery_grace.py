"""Stalled jobs are not recovered for one lock duration after an interruption."""

import time
from typing import Any, cast

import pytest

from glidemq_py._features.failure_policy import FailurePolicyTask
from glidemq_py._maintenance.stalled_jobs import StalledJobsTask
from tests.inside import Interruptions, QueueKeys, RecoverStalledReply, WorkerOptions, hash_tag


class FakeTransport:
    """Counts calls; none finds anything."""

    def __init__(self):
        self.interruptions = Interruptions()
        self.calls = 0

    async def call(self, _: object) -> RecoverStalledReply:
        self.calls += 1
        return RecoverStalledReply([], [], "", 1)


def recovery(transport: FakeTransport) -> StalledJobsTask:
    link = type("Link", (), {"transport": transport, "keys": QueueKeys("glide", "q"), "label": "'q'"})()
    source = type("Source", (), {"recover_stalled": lambda self, cursor: cursor})()
    options = WorkerOptions(lock_duration=60_000, stalled_interval=30_000)
    fake = cast("Any", None)
    return StalledJobsTask(
        link=link, source=source, options=options, listeners=fake, failure_log=fake, policy=FailurePolicyTask(link)
    )


async def test_recovery_runs_without_an_interruption():
    transport = FakeTransport()
    await recovery(transport).run_once()
    assert transport.calls == 1


async def test_recovery_waits_one_lock_duration_after_an_interruption():
    transport = FakeTransport()
    one = recovery(transport)
    transport.interruptions.record()
    await one.run_once()
    assert transport.calls == 0
    transport.interruptions._last = time.monotonic() - 61
    await one.run_once()
    assert transport.calls == 1


async def test_interruption_of_another_queue_in_a_cluster_does_not_delay_recovery():
    transport = FakeTransport()
    one = recovery(transport)
    transport.interruptions.record("other")
    await one.run_once()
    assert transport.calls == 1
    transport.interruptions.record("q")
    await one.run_once()
    assert transport.calls == 1


def test_interruptions_of_very_many_queues_count_for_all():
    interruptions = Interruptions()
    for number in range(1_000):
        interruptions.record(str(number))
    assert interruptions.age_s("other") == float("inf")
    interruptions.record("one more")
    assert interruptions.age_s("other") < float("inf")


@pytest.mark.parametrize(
    ("key", "tag"), [("glide:{a b}:meta", "a b"), (b"x:{y}", "y"), ("none", None), ("{}", None), ("{open", None)]
)
def test_hash_tags(key: str | bytes, tag: str | None):
    assert hash_tag(key) == tag
