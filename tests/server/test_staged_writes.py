"""A staged write that was decided and left by its writer is published by a worker, wherever its home is."""

import pytest

from glidemq_py import Job, Worker
from glidemq_py._client.blocking_transport import ThreadTransport
from glidemq_py._client.connect import config_of
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._core.calls.adding import request
from glidemq_py._core.keys import QueueKeys
from glidemq_py._features import staged_writes as staging
from glidemq_py._features.staged_writes import Steps, WriteId, commit_write
from glidemq_py._maintenance import outbox as outbox_task
from glidemq_py.testing import RespClient
from tests.server.worker_support import EventRecorder


def leave_after(transport: ThreadTransport, steps: Steps[object], calls: int) -> None:
    """Run the first calls of a protocol, and die."""
    reply = None
    for _ in range(calls):
        reply = transport.call(steps.send(reply))


@pytest.mark.parametrize("worked_on", ["home", "beside"])
async def test_worker_publishes_an_abandoned_write(
    core_url: str, core_resp: RespClient, queue_name: str, worked_on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_task, "LEFT_ALONE_MS", 0)
    home, beside = QueueKeys("glide", queue_name), QueueKeys("glide", queue_name + "-b")
    write = WriteId(id="w", home=home)
    transport = ThreadTransport(config_of(ConnectionOptions.from_url(core_url)))
    transport.call(staging.open_write(write, create=True, queue=beside.name))
    for keys in (home, beside):
        for seq in range(5):
            blob = request([["n", str(seq), "{}"]] * 10, True)
            transport.call(staging.stage(write, keys, "a", seq, blob, False))
    # Prepared beside, decided at home, one piece published.
    leave_after(transport, commit_write(write, {home.name: [("a", 5)], beside.name: [("a", 5)]}), 3)

    async def handle(job: Job) -> None:
        pass

    keys = home if worked_on == "home" else beside
    async with Worker(keys.name, handle, core_url, concurrency=10) as worker:
        await EventRecorder(worker).wait("completed", 50)
    other = beside if worked_on == "home" else home
    # At home everything is published; beside, what is here.
    expected = 50 if worked_on == "home" else 10
    assert core_resp.execute("XLEN", other.stream) == expected
    transport.close()
