"""Figures of the gateway and of the queues, with raw frames."""

import secrets
import shutil
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from glidemq_py import BackupSchedule
from glidemq_py.gateway import Gateway
from tests.bench.bunqueue import BunqueuePackages
from tests.inside import back_up
from tests.server.gateway.peer import bunqueue
from tests.server.gateway.wire import Wire, good


@pytest.fixture
async def used(wire: Wire, queue_name: str) -> str:
    """A queue with a waiting, a delayed, a completed and a failed job, one of which was pulled in vain."""
    await good(wire, "PUSHB", queue=queue_name, jobs=[{"data": number} for number in range(3)])
    await good(wire, "PUSH", queue=queue_name, data=3, delay=600_000)
    pulled = await good(wire, "PULLB", queue=queue_name, count=2, owner="w")
    first, second = (job["id"] for job in pulled["jobs"])
    await good(wire, "ACKB", ids=[first], tokens=pulled["tokens"][:1])
    await good(wire, "FAIL", id=second, token=pulled["tokens"][1], error="bad", unrecoverable=True)
    return queue_name


async def test_prometheus(wire: Wire, used: str, monkeypatch: pytest.MonkeyPatch):
    async def samples() -> dict[tuple[str, str], float]:
        text = (await good(wire, "Prometheus"))["data"]["metrics"]
        return {
            (sample.name, sample.labels.get("queue", sample.labels.get("le", ""))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    found = await samples()
    assert found["bunqueue_jobs_pushed_total", ""] == 4
    assert found["bunqueue_queue_jobs_waiting", used] == 1
    assert found["bunqueue_queue_jobs_dlq", used] == 1
    assert found["bunqueue_push_duration_seconds_bucket", "+Inf"] == 2
    assert found["bunqueue_push_duration_seconds_count", ""] == 2
    assert found["bunqueue_queue_metrics_omitted", ""] == 0
    assert found["bunqueue_webhooks_registered", ""] >= found["bunqueue_webhooks_enabled", ""] >= 0
    assert found["bunqueue_process_resident_memory_bytes", ""] > found["bunqueue_process_heap_used_bytes", ""] > 2**20
    assert found["process_heap_bytes", ""] >= found["bunqueue_process_heap_used_bytes", ""]
    assert {found[f"bunqueue_backup_{name}", ""] for name in ("enabled", "attempts_total", "retention")} == {0}
    monkeypatch.setenv("METRICS_MAX_QUEUES", "0")
    limited = await samples()
    assert ("bunqueue_queue_jobs_waiting", used) not in limited
    assert limited["bunqueue_queue_metrics_omitted", ""] >= 1


async def test_prometheus_has_all_series_of_bunqueue(packages: BunqueuePackages, wire: Wire, used: str, tmp_path: Path):
    def names(text: str) -> set[tuple[str, str]]:
        return {(family.name, family.type) for family in text_string_to_metric_families(text)}

    async with bunqueue(packages, tmp_path) as (port, http_port), Wire(port) as original, httpx.AsyncClient() as http:
        await good(original, "PUSH", queue=used, data=1)
        wanted = names((await http.get(f"http://127.0.0.1:{http_port}/prometheus")).text)
    assert ("bunqueue_backup_attempts", "counter") in wanted
    assert wanted - names((await good(wire, "Prometheus"))["data"]["metrics"]) == set()


async def test_prometheus_counts_backups(url: str, queue_name: str, tmp_path: Path):
    pytest.importorskip("obstore")
    prefix = f"p{secrets.token_hex(4)}"
    folder = tmp_path / "backups"
    async with Gateway(url, port=0, prefix=prefix, backup=str(folder), backup_keep=3) as gateway, Wire(gateway) as wire:

        async def figures() -> dict[str, float]:
            text = (await good(wire, "Prometheus"))["data"]["metrics"]
            return {
                sample.name.removeprefix("bunqueue_backup_"): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
                if sample.name.startswith("bunqueue_backup_")
            }

        enabled = await figures()
        assert (enabled["enabled"], enabled["scheduler_running"]) == (1, 1)
        assert (enabled["interval_seconds"], enabled["retention"]) == (21_600, 3)
        await good(wire, "PUSH", queue=queue_name, data=1)
        queue = await gateway.queue(queue_name)
        await back_up(gateway, queue)
        await back_up(gateway, queue)  # the next one is not due
        found = await figures()
        assert [found[name] for name in ("attempts_total", "successes_total", "failures_total", "in_progress")] == [
            1, 1, 0, 0
        ]  # fmt: skip
        assert found["last_success_timestamp_seconds"] > found["last_failure_timestamp_seconds"] == 0
        assert found["last_size_bytes"] > 0 < found["last_duration_seconds"]
        shutil.rmtree(folder)
        folder.write_text("no directory")
        await back_up(gateway, queue)
        failed = await figures()
        assert [failed[name] for name in ("attempts_total", "failures_total", "consecutive_failures")] == [2, 1, 1]
        assert failed["last_failure_timestamp_seconds"] >= found["last_success_timestamp_seconds"]
        await back_up(gateway, await gateway.queue(f"{queue_name}-2"))
        assert (await figures())["consecutive_failures"] == 1  # one each
        folder.unlink()
        await back_up(gateway, queue)
        assert (await figures())["consecutive_failures"] == 1  # the other queue fails still
        await back_up(gateway, await gateway.queue(f"{queue_name}-2"))
        recovered = await figures()
        assert [recovered[name] for name in ("attempts_total", "failures_total", "consecutive_failures")] == [5, 2, 0]


async def test_backup_whose_library_panics_is_logged_and_counted(
    url: str, queue_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    pytest.importorskip("obstore")

    class PanicError(BaseException):
        """As the exception of obstore's library, it is no Exception."""

    async def panicking(*_: object):
        raise PanicError("called `Result::unwrap()` on an `Err` value")

    prefix = f"p{secrets.token_hex(4)}"
    async with Gateway(url, port=0, prefix=prefix, backup=str(tmp_path)) as gateway:
        queue = await gateway.queue(queue_name)
        monkeypatch.setattr(BackupSchedule, "_create", panicking)
        await back_up(gateway, queue)
        found = gateway.backup_figures
        assert (found.attempts, found.failures, found.consecutive_failures, found.in_progress) == (1, 1, 1, 0)
    assert caplog.text.count(f"gateway: queue {queue_name!r}: could not back it up") == 1
