"""One script of HTTP requests against bunqueue and a gateway: the answers differ only as documented."""

import asyncio
import http.client
import json
import secrets
from pathlib import Path
from typing import Any

import pytest

from glidemq_py.gateway import Gateway
from tests.bench.bunqueue import BunqueuePackages
from tests.server.gateway.peer import bunqueue

Q = "/queues/{q}"
DATA = {"data": {"n": 1}}
UNTIL_2100 = 4_102_444_800_000
Step = tuple[str, str, str, Any]

STEPS: tuple[Step, ...] = (
    ("add", "POST", f"{Q}/jobs", {**DATA, "name": "mail", "attempts": 5}),
    ("job", "GET", "/jobs/{add}", None),
    ("state", "GET", "/jobs/{add}/state", None),
    ("no result", "GET", "/jobs/{add}/result", None),
    ("progress of a waiting job", "GET", "/jobs/{add}/progress", None),
    ("report progress of a waiting job", "POST", "/jobs/{add}/progress", {"progress": 5}),
    ("logs", "POST", "/jobs/{add}/logs", {"message": "m", "level": "info"}),
    ("get logs", "GET", "/jobs/{add}/logs", None),
    ("clear logs", "DELETE", "/jobs/{add}/logs", None),
    ("children", "GET", "/jobs/{add}/children", None),
    ("priority", "PUT", "/jobs/{add}/priority", {"priority": 3}),
    ("data", "PUT", "/jobs/{add}/data", {"data": {"z": 1}}),
    ("delay", "PUT", "/jobs/{add}/delay", {"delay": 3_600_000}),
    ("state of the delayed job", "GET", "/jobs/{add}/state", None),
    ("promote", "POST", "/jobs/{add}/promote", None),
    ("promote again", "POST", "/jobs/{add}/promote", None),
    ("priority-counts", "GET", f"{Q}/priority-counts", None),
    ("wait", "POST", "/jobs/{add}/wait", {"timeout": 10}),
    ("heartbeat of a waiting job", "POST", "/jobs/{add}/heartbeat", {}),
    ("lock of a waiting job", "POST", "/jobs/{add}/extend-lock", {"duration": 1000}),
    ("pull", "GET", f"{Q}/jobs", None),
    ("report progress", "POST", "/jobs/{add}/progress", {"progress": 7, "message": "h"}),
    ("progress", "GET", "/jobs/{add}/progress", None),
    ("heartbeat", "POST", "/jobs/{add}/heartbeat", {}),
    ("ack", "POST", "/jobs/{add}/ack", {"result": {"a": 1}}),
    ("ack again", "POST", "/jobs/{add}/ack", {"result": {"a": 1}}),
    ("result", "GET", "/jobs/{add}/result", None),
    ("wait for the completed job", "POST", "/jobs/{add}/wait", {"timeout": 100}),
    ("nothing to pull", "GET", f"{Q}/jobs", None),
    ("add a second", "POST", f"{Q}/jobs", {**DATA, "maxAttempts": 1}),
    ("pull with owner", "GET", f"{Q}/jobs?owner=me", None),
    ("fail", "POST", "/jobs/{add a second}/fail", {"error": "e", "token": "{pull with owner}"}),
    ("dlq", "GET", f"{Q}/dlq", None),
    ("dlq stats", "GET", f"{Q}/dlq/stats", None),
    ("retry dlq", "POST", f"{Q}/dlq/retry", {}),
    ("discard", "POST", "/jobs/{add a second}/discard", None),
    ("purge dlq", "POST", f"{Q}/dlq/purge", None),
    ("bulk", "POST", f"{Q}/jobs/bulk", {"jobs": [DATA, DATA]}),
    ("bad bulk", "POST", f"{Q}/jobs/bulk", {"jobs": [{**DATA, "priority": "x"}]}),
    ("pull batch", "POST", f"{Q}/jobs/pull-batch", {"count": 2}),
    ("ack batch", "POST", "/jobs/ack-batch", {"ids": []}),
    ("ack unknown batch", "POST", "/jobs/ack-batch", {"ids": ["x"]}),
    ("heartbeat batch", "POST", "/jobs/heartbeat-batch", {"ids": ["x"]}),
    ("extend locks", "POST", "/jobs/extend-locks", {"ids": ["x"], "tokens": ["t"], "durations": [1000]}),
    ("counts", "GET", f"{Q}/counts", None),
    ("count", "GET", f"{Q}/count", None),
    ("list", "GET", f"{Q}/jobs/list?state=active", None),
    ("workers of the queue", "GET", f"{Q}/workers", None),
    ("pause", "POST", f"{Q}/pause", None),
    ("paused", "GET", f"{Q}/paused", None),
    ("resume", "POST", f"{Q}/resume", None),
    ("clean", "POST", f"{Q}/clean", {"grace": 0, "state": "completed"}),
    ("promote jobs", "POST", f"{Q}/promote-jobs", None),
    ("retry completed", "POST", f"{Q}/retry-completed", None),
    ("add a third", "POST", f"{Q}/jobs", DATA),
    ("cancel", "DELETE", "/jobs/{add a third}", None),
    ("cancel again", "DELETE", "/jobs/{add a third}", None),
    ("cancelled job", "GET", "/jobs/{add a third}", None),
    ("add with an id", "POST", f"{Q}/jobs", {**DATA, "jobId": "{q}-chosen"}),
    ("by custom id", "GET", "/jobs/custom/{q}-chosen", None),
    ("no custom id", "GET", "/jobs/custom/{q}-none", None),
    ("drain", "POST", f"{Q}/drain", None),
    ("dlq config", "PUT", f"{Q}/dlq-config", {"config": {"autoRetry": True}}),
    ("get dlq config", "GET", f"{Q}/dlq-config", None),
    ("stall config", "PUT", f"{Q}/stall-config", {"maxStalls": 4}),
    ("get stall config", "GET", f"{Q}/stall-config", None),
    ("rate limit", "PUT", f"{Q}/rate-limit", {"limit": 5}),
    ("no rate limit", "DELETE", f"{Q}/rate-limit", None),
    ("concurrency", "PUT", f"{Q}/concurrency", {"concurrency": 5}),
    ("no concurrency", "DELETE", f"{Q}/concurrency", None),
    ("cron", "POST", "/crons", {"name": "{q}", "queue": "{q}", "data": {}, "repeatEvery": 3_600_000}),
    ("get cron", "GET", "/crons/{q}", None),
    ("remove cron", "DELETE", "/crons/{q}", None),
    ("remove cron again", "DELETE", "/crons/{q}", None),
    ("no cron", "GET", "/crons/{q}", None),
    ("worker", "POST", "/workers", {"name": "w", "queues": ["{q}"], "workerId": "{q}"}),
    ("heartbeat of the worker", "POST", "/workers/{q}/heartbeat", {"activeJobs": 1}),
    ("worker of the queue", "GET", f"{Q}/workers", None),
    ("remove worker", "DELETE", "/workers/{q}", None),
    ("remove worker again", "DELETE", "/workers/{q}", None),
    ("webhook", "POST", "/webhooks", {"url": "https://example.com/{q}", "events": ["job.completed"], "queue": "{q}"}),
    ("disable webhook", "PUT", "/webhooks/{webhook}/enabled", {"enabled": False}),
    ("remove webhook", "DELETE", "/webhooks/{webhook}", None),
    ("remove webhook again", "DELETE", "/webhooks/{webhook}", None),
    ("disable no webhook", "PUT", "/webhooks/{webhook}/enabled", {"enabled": False}),
    ("ping", "GET", "/ping", None),
    ("storage", "GET", "/storage", None),
    ("ready", "GET", "/ready", None),
    ("health", "GET", "/health", None),
    ("live", "GET", "/live", None),
    ("healthz", "GET", "/healthz", None),
    ("metrics", "GET", "/metrics", None),
    ("dashboard of the queue", "GET", f"/dashboard{Q}", None),
    ("obliterate", "POST", f"{Q}/obliterate", None),
    ("no path", "GET", "/nothing", None),
    ("no method", "PATCH", "/queues", None),
    ("options", "OPTIONS", "/queues", None),
    ("no JSON", "POST", f"{Q}/jobs", b"{"),
    ("no body", "POST", f"{Q}/jobs", b""),
    ("bad name", "POST", "/queues/bad%20name/jobs", DATA),
    ("bad priority", "POST", f"{Q}/jobs", {"priority": "x"}),
    ("bad timeout", "GET", f"{Q}/jobs?timeout=99999", None),
    ("bad count", "POST", f"{Q}/jobs/pull-batch", {"count": 0}),
    ("bad limit", "PUT", f"{Q}/concurrency", {}),
    ("wait for no job", "POST", "/jobs/x/wait", {}),
    ("heartbeat of no worker", "POST", "/workers/{q}/heartbeat", {}),
)
# docs/learn/gateway.md, "Differences"
NOT_200 = ["status 200, ours 400"]
DIFFERENCES: dict[str, list[str]] = {
    "bad timeout": NOT_200,
    "bad count": NOT_200,
    "bad limit": [*NOT_200, ".error: 'limit must be a finite number', ours 'limit is required'"],
    "wait for no job": NOT_200,
    "heartbeat of no worker": NOT_200,
    "count": [".count: 0, ours 2"],  # active jobs
    "dlq": [".entries[].expiresAt: '<time>', ours None", ".total is missing"],
    "get dlq config": [".config.maxAge: 604800000, ours None", ".config.maxEntries: 10000, ours None"],
    "get stall config": [".config.gracePeriod: 5000, ours 0"],
    "list": [".jobs[]._state is missing"] * 2,
    "dashboard of the queue": [".counts.totalCompleted is missing", ".counts.totalFailed is missing"],
}
"""What differs, by step."""
OF_JOBS = {"backoff", "backoffConfig", "completedAt", "lastHeartbeat", "stacktrace", "timeline"}
"""Members of job objects that differ: see the table."""
VARIABLE = OF_JOBS | {"uptime", "version", "memory", "time", "timestamp", "clientId", "memoryUsageMb", "duration"}


def filled(value: Any, known: dict[str, str]) -> Any:
    """Return a value of a script with the texts that its names in braces stand for."""
    if isinstance(value, str):
        for name, text in known.items():
            value = value.replace(f"{{{name}}}", text)
        return value
    if isinstance(value, dict):
        return {name: filled(each, known) for name, each in value.items()}
    return [filled(each, known) for each in value] if isinstance(value, list) else value


def play(port: int, queue: str) -> dict[str, tuple[int, Any]]:
    """Send the requests; return status and body by step."""
    known, answers = {"q": queue}, dict[str, tuple[int, Any]]()

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for label, method, path, body in STEPS:
        content = body if body is None or isinstance(body, bytes) else json.dumps(filled(body, known)).encode()
        connection.request(method, filled(path, known), content)
        response = connection.getresponse()
        text = response.read().decode()
        try:
            answer = json.loads(text)
        except ValueError:
            answer = text
        answers[label] = response.status, answer
        if isinstance(answer, dict) and answer.get("ok"):
            found = answer.get("token") or answer.get("id") or (answer.get("data") or {}).get("webhookId")
            if found:
                known[label] = found
    connection.close()
    return answers


def differences(theirs: Any, ours: Any, path: str = "") -> list[str]:
    """Return what is missing or different in our answer; it may have more members."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        found: list[str] = []
        for name, value in theirs.items():
            if name not in ours:
                found.append(f"{path}.{name} is missing")
            elif name not in VARIABLE:
                found += differences(value, ours[name], f"{path}.{name}")
        return found
    if isinstance(theirs, list) and isinstance(ours, list):
        if len(theirs) != len(ours):
            return [f"{path}: {len(theirs)} items, ours {len(ours)}"]
        return [each for pair in zip(theirs, ours, strict=True) for each in differences(*pair, f"{path}[]")]
    return [] if _shape(theirs) == _shape(ours) else [f"{path}: {_shape(theirs)!r}, ours {_shape(ours)!r}"]


def _shape(value: Any) -> Any:
    """Return what must be equal: not ids, tokens and times."""
    if isinstance(value, str) and len(value) >= 36 and value.count("-") >= 4:
        return value.partition(":")[0] if ":" in value else "<id>"
    return "<time>" if isinstance(value, int | float) and 1_700_000_000_000 < value < UNTIL_2100 else value


@pytest.mark.slow
async def test_requests(packages: BunqueuePackages, url: str, tmp_path: Path) -> None:
    queue = f"http-{secrets.token_hex(6)}"
    async with bunqueue(packages, tmp_path) as (_, port):
        expected = await asyncio.to_thread(play, port, queue)
    async with Gateway(url, port=0, http_port=0) as gateway:
        assert gateway.http_port is not None
        found = await asyncio.to_thread(play, gateway.http_port, queue)
    different: dict[str, list[str]] = {}
    for label, (status, body) in expected.items():
        changes = [] if status == found[label][0] else [f"status {status}, ours {found[label][0]}"]
        changes += differences(body, found[label][1])
        if changes:
            different[label] = changes
    assert different == DIFFERENCES


@pytest.mark.parametrize(
    ("theirs", "ours", "count"),
    [({"a": 1}, {"a": 1, "b": 2}, 0), ({"a": 1}, {}, 1), ([{"a": 1}], [{"a": 2}], 1), ([1], [], 1)],
)
def test_comparison(theirs: Any, ours: Any, count: int) -> None:
    assert len(differences(theirs, ours)) == count
