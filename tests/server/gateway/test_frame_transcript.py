"""One script of raw frames, with each command of the protocol, against bunqueue and a gateway: the answers differ only
as documented.
"""

import secrets
from pathlib import Path
from typing import Any

from msgpack import ExtType

from glidemq_py.gateway import Gateway
from glidemq_py.gateway.commands import PROTOCOL
from tests.bench.bunqueue import BunqueuePackages
from tests.server.gateway.peer import bunqueue
from tests.server.gateway.test_http_transcript import differences, filled
from tests.server.gateway.wire import Wire

Q = {"queue": "{q}"}
ONE = {**Q, "owner": "me"}
PARENT, CHILD = "0190a000-0000-7000-8000-00000000{n}1", "0190a000-0000-7000-8000-00000000{n}2"
OF_PARENT = {"__parentId": PARENT, "__parentQueue": "{q}"}
STEPS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("hello", "Hello", {"protocolVersion": 2}),
    ("auth", "Auth", {"token": "x"}),
    ("ping", "Ping", {}),
    ("push", "PUSH", {**Q, "name": "a", "data": {"n": 1}, "priority": 5, "uniqueKey": "u"}),
    ("push again", "PUSH", {**Q, "data": {"n": 2}, "uniqueKey": "u"}),
    ("job", "GetJob", {"id": "{push}"}),
    ("state", "GetState", {"id": "{push}"}),
    ("no state", "GetState", {"id": "none"}),
    ("no result", "GetResult", {"id": "none"}),
    ("no job", "GetJob", {"id": "none"}),
    ("progress of a waiting job", "GetProgress", {"id": "{push}"}),
    ("report progress of a waiting job", "Progress", {"id": "{push}", "progress": 1}),
    ("counts", "GetJobCounts", Q),
    ("priority counts", "GetCountsPerPriority", Q),
    ("count", "Count", Q),
    ("push low", "PUSH", {**Q, "data": 1, "priority": -2}),
    ("low job", "GetJob", {"id": "{push low}"}),
    ("state of the low job", "GetState", {"id": "{push low}"}),
    ("counts with the low job", "GetJobCounts", Q),
    ("waiting jobs", "GetJobs", {**Q, "state": "waiting"}),
    ("prioritized jobs", "GetJobs", {**Q, "state": "prioritized"}),
    ("cancel the low job", "Cancel", {"id": "{push low}"}),
    ("dedup", "GetDeduplicationJobId", {**Q, "deduplicationId": "u"}),
    ("no dedup", "GetDeduplicationJobId", {**Q, "deduplicationId": "none"}),
    ("remove job's dedup", "RemoveJobDeduplicationKey", {"id": "{push}"}),
    ("remove job's dedup again", "RemoveJobDeduplicationKey", {"id": "{push}"}),
    ("remove dedup", "RemoveDeduplicationKey", {**Q, "deduplicationId": "u"}),
    ("update", "Update", {"id": "{push}", "data": {"n": 3}}),
    ("update none", "Update", {"id": "none", "data": 1}),
    ("priority", "ChangePriority", {"id": "{push}", "priority": 7}),
    ("priority of none", "ChangePriority", {"id": "none", "priority": 7}),
    ("delay", "ChangeDelay", {"id": "{push}", "delay": 3_600_000}),
    ("state of the delayed job", "GetState", {"id": "{push}"}),
    ("promote", "Promote", {"id": "{push}"}),
    ("promote again", "Promote", {"id": "{push}"}),
    ("promote all", "PromoteJobs", Q),
    ("log", "AddLog", {"id": "{push}", "message": "m", "level": "info"}),
    ("log of none", "AddLog", {"id": "none", "message": "m", "level": "info"}),
    ("clear logs", "ClearLogs", {"id": "{push}"}),
    ("logs", "GetLogs", {"id": "{push}"}),
    ("pull", "PULL", ONE),
    ("no token", "ACK", {"id": "{push}"}),
    ("bad token", "ACK", {"id": "{push}", "token": "x"}),
    ("bad token of a failure", "FAIL", {"id": "{push}", "token": "x", "error": "e"}),
    ("cancel an active job", "Cancel", {"id": "{push}"}),
    ("progress", "Progress", {"id": "{push}", "progress": 30, "message": "third"}),
    ("get progress", "GetProgress", {"id": "{push}"}),
    ("heartbeat", "JobHeartbeat", {"id": "{push}", "token": "{pull}"}),
    ("bad heartbeat", "JobHeartbeat", {"id": "{push}", "token": "x"}),
    ("heartbeats", "JobHeartbeatB", {"ids": ["{push}", "none"], "tokens": ["{pull}", "x"]}),
    ("extend", "ExtendLock", {"id": "{push}", "token": "{pull}", "duration": 30_000}),
    ("bad extend", "ExtendLock", {"id": "{push}", "token": "x", "duration": 30_000}),
    ("extend many", "ExtendLocks", {"ids": ["{push}"], "tokens": ["{pull}"], "durations": [30_000]}),
    ("ack", "ACK", {"id": "{push}", "token": "{pull}", "result": {"r": 1}}),
    ("ack again", "ACK", {"id": "{push}", "token": "{pull}"}),
    ("result", "GetResult", {"id": "{push}"}),
    ("wait", "WaitJob", {"id": "{push}", "timeout": 50}),
    ("wait for none", "WaitJob", {"id": "none", "timeout": 50}),
    ("completed", "GetJobs", {**Q, "state": "completed"}),
    ("retry completed", "RetryCompleted", {**Q, "id": "{push}"}),
    ("pull retried", "PULL", ONE),
    ("to wait", "MoveToWait", {"id": "{push}", "token": "{pull retried}"}),
    ("to wait again", "MoveToWait", {"id": "{push}"}),
    ("pull released", "PULL", ONE),
    ("to delayed", "MoveToDelayed", {"id": "{push}", "delay": 60_000, "token": "{pull released}"}),
    ("cancel", "Cancel", {"id": "{push}"}),
    ("cancel again", "Cancel", {"id": "{push}"}),
    ("batch", "PUSHB", {**Q, "jobs": [{"data": 1, "maxAttempts": 1}, {"data": 2, "maxAttempts": 1}]}),
    ("bad batch", "PUSHB", {**Q, "jobs": [{"data": 1}, {"delay": "x"}]}),
    ("empty batch", "PUSHB", {**Q, "jobs": []}),
    ("pull batch", "PULLB", {**ONE, "count": 2}),
    ("ack of none", "ACKB", {"ids": []}),
    ("ack of unknown", "ACKB", {"ids": ["none"]}),
    ("ack with other lengths", "ACKB", {"ids": ["none"], "tokens": []}),
    ("fail", "FAIL", {"id": "{batch}", "token": "{pull batch}", "error": "on purpose"}),
    ("fail again", "FAIL", {"id": "{batch}", "token": "{pull batch}", "error": "on purpose"}),
    ("dlq", "Dlq", Q),
    ("dlq stats", "GetDlqStats", Q),
    ("retry dlq", "RetryDlq", {**Q, "jobId": "{batch}"}),
    ("retry unknown dlq", "RetryDlq", {**Q, "jobId": "none"}),
    ("discard", "Discard", {"id": "{batch}"}),
    ("discard none", "Discard", {"id": "none"}),
    ("remove dlq", "RemoveDlqJob", {**Q, "jobId": "{batch}"}),
    ("purge", "PurgeDlq", Q),
    ("set dlq", "SetDlqConfig", {**Q, "config": {"autoRetry": True, "maxAutoRetries": 5}}),
    ("get dlq", "GetDlqConfig", Q),
    ("set stall", "SetStallConfig", {**Q, "config": {"maxStalls": 4}}),
    ("get stall", "GetStallConfig", Q),
    ("push with id", "PUSH", {**Q, "data": 1, "jobId": "{q}-own", "delay": 60_000}),
    ("push with id again", "PUSH", {**Q, "data": 2, "jobId": "{q}-own"}),
    ("by custom id", "GetJobByCustomId", {"customId": "{q}-own"}),
    ("by no custom id", "GetJobByCustomId", {"customId": "none"}),
    ("dependent", "PUSH", {**Q, "data": 1, "dependsOn": ["{q}-own"]}),
    ("depends on nothing", "PUSH", {**Q, "data": 1, "dependsOn": ["none"]}),
    ("state of the dependent", "GetState", {"id": "{dependent}"}),
    ("pause", "Pause", Q),
    ("is paused", "IsPaused", Q),
    ("nothing of a paused queue", "PULL", ONE),
    ("resume", "Resume", Q),
    ("rate limit", "RateLimit", {**Q, "limit": 5, "duration": 2_000}),
    ("concurrency", "SetConcurrency", {**Q, "limit": 3}),
    ("limits", "GetQueueLimits", Q),
    ("no rate limit", "RateLimitClear", Q),
    ("no concurrency", "ClearConcurrency", Q),
    ("no limits", "GetQueueLimits", Q),
    ("bad rate limit", "RateLimit", {**Q, "limit": 0}),
    *(
        (f"group: {name}", name, {**Q, "groupId": "g", **fields})
        for name, fields in (
            ("GetGroupJobsCount", {}), ("GetGroupActiveCount", {}),
            ("SetGroupRateLimit", {"max": 5, "duration": 1_000}), ("GetGroupRateLimit", {}),
            ("GetGroupRateLimitTtl", {}), ("RemoveGroupRateLimit", {}),
            ("SetGroupConcurrency", {"concurrency": 2}), ("GetGroupConcurrency", {}), ("RemoveGroupConcurrency", {}),
            ("PauseGroup", {}), ("IsGroupPaused", {}), ("ResumeGroup", {}), ("GetGroupsJobsCount", {}),
        )
    ),
    ("cron", "Cron", {**Q, "name": "{q}", "data": 1, "repeatEvery": 3_600_000}),
    ("bad cron", "Cron", {**Q, "name": "{q}", "schedule": "x"}),
    ("cron without time", "Cron", {**Q, "name": "{q}"}),
    ("get cron", "CronGet", {"name": "{q}"}),
    ("crons", "CronList", {}),
    ("delete cron", "CronDelete", {"name": "{q}"}),
    ("delete cron again", "CronDelete", {"name": "{q}"}),
    ("worker", "RegisterWorker", {"name": "w", "queues": ["{q}"], "workerId": "{q}"}),
    ("worker heartbeat", "Heartbeat", {"id": "{q}", "activeJobs": 1}),
    ("heartbeat of no worker", "Heartbeat", {"id": "none"}),
    ("workers", "ListWorkers", {}),
    ("remove worker", "UnregisterWorker", {"workerId": "{q}"}),
    ("remove worker again", "UnregisterWorker", {"workerId": "{q}"}),
    ("webhook", "AddWebhook", {"url": "https://example.com/{q}", "events": ["job.failed"], "queue": "{q}"}),
    ("private webhook", "AddWebhook", {"url": "http://127.0.0.1/", "events": ["job.failed"]}),
    ("webhook of no event", "AddWebhook", {"url": "https://example.com/", "events": ["x"]}),
    ("webhooks", "ListWebhooks", {}),
    ("disable webhook", "SetWebhookEnabled", {"id": "{webhook}", "enabled": False}),
    ("remove webhook", "RemoveWebhook", {"webhookId": "{webhook}"}),
    ("remove webhook again", "RemoveWebhook", {"webhookId": "{webhook}"}),
    ("flow", "PUSHF", {"jobs": [
        {"id": CHILD, "queue": "{q}", "input": {"name": "c", "data": OF_PARENT, "parentId": PARENT, "delay": 60_000}},
        {"id": PARENT, "queue": "{q}", "input": {
            "name": "p", "data": {"__childrenIds": [CHILD]}, "childrenIds": [CHILD], "dependsOn": [CHILD],
        }},
    ]}),
    ("state of the parent", "GetState", {"id": PARENT}),
    ("values of children", "GetChildrenValues", {"id": PARENT}),
    ("failed children", "GetFailedChildrenValues", {"id": PARENT}),
    ("ignored children", "GetIgnoredChildrenFailures", {"id": PARENT}),
    ("remove child", "RemoveChildDependency", {"id": CHILD}),
    ("remove child again", "RemoveChildDependency", {"id": CHILD}),
    ("remove children", "RemoveUnprocessedChildren", {"id": PARENT}),
    ("trim events", "TrimEvents", {**Q, "maxLength": 100}),
    ("clean", "Clean", {**Q, "grace": 0, "state": "completed"}),
    ("metrics", "Metrics", {}),
    ("metrics of the queue", "Metrics", {**Q, "type": "completed"}),
    ("stats", "Stats", {}),
    ("prometheus", "Prometheus", {}),
    ("storage", "StorageStatus", {}),
    ("compact", "CompactMemory", {}),
    ("overview", "DashboardOverview", {}),
    ("queues of the dashboard", "DashboardQueues", {}),
    ("queue of the dashboard", "DashboardQueue", Q),
    ("drain", "Drain", Q),
    ("obliterate", "Obliterate", Q),
    ("count after", "GetJobCounts", Q),
    ("unknown", "Nonsense", {}),
)  # fmt: skip
NOT_COMPARED = {
    "metrics", "metrics of the queue", "stats", "prometheus", "overview", "queues of the dashboard", "crons",
    "webhooks", "workers",
}  # fmt: skip
"""Figures of the whole server, and lists that have what other tests have added."""
OTHERS = {
    "ListQueues",
    "SubscribeEvents",
    "UnsubscribeEvents",
    "MoveToWaitingChildren",
    "UpdateParent",
    "RateLimitGroup",
}
"""Commands that the scripts of the npm client and tests of their own compare."""
_STATE = "._state is missing"
DIFFERENCES: dict[str, list[str]] = {
    # A report that is repeated with its token is no error: its answer may have been lost.
    "ack again": [".ok: False, ours True", ".error is missing"],
    "fail again": [".ok: False, ours True", ".error is missing"],
    "waiting jobs": [f".jobs[]{_STATE}"],
    "prioritized jobs": [f".jobs[]{_STATE}"],
    "pull": [f".job{_STATE}"],
    "completed": [".jobs[].progress: 30, ours 100", f".jobs[]{_STATE}"],
    "pull retried": [".job.progress: 0, ours 30", f".job{_STATE}"],
    "pull released": [".job.progress: 0, ours 30", f".job{_STATE}"],
    "dlq": [".entries[].expiresAt: '<time>', ours None"],
    "get dlq": [".config.maxAge: 604800000, ours None", ".config.maxEntries: 10000, ours None"],
    "get stall": [".config.gracePeriod: 5000, ours 0"],
    "bad rate limit": [".ok: True, ours False"],
    "bad cron": [
        ".error: 'Invalid cron expression: Cron expression must have 5 fields, or 6 fields with leading seconds', "
        'ours "Invalid cron expression: schedule \'x\': must have 5 fields, or 6 with the seconds first, not 1"'
    ],
    "queue of the dashboard": [
        ".data.counts.totalCompleted is missing", ".data.counts.totalFailed is missing",
        ".data.priorityCounts.0: 3, ours 1",
    ],
}  # fmt: skip
"""What differs, by step; docs/learn/gateway.md, "Differences"."""


async def play(port: int, queue: str) -> dict[str, Any]:
    """Send the frames; return the answers by step."""
    known: dict[str, str] = {"q": queue, "n": queue[-3:]}
    answers: dict[str, Any] = {}

    async with Wire(port) as wire:
        for label, cmd, fields in STEPS:
            answer = plain(await wire.call(cmd, **filled(fields, known)))
            answers[label] = {name: _typed(value) if "token" in name else value for name, value in answer.items()}
            if answer["ok"]:
                found = answer.get("token") or answer.get("id") or (answer.get("data") or {}).get("webhookId")
                found = found or (answer.get("tokens") or answer.get("ids") or [None])[0]
                if isinstance(found, str):
                    known[label] = found
    return answers


def _typed(value: Any) -> Any:
    return [_typed(each) for each in value] if isinstance(value, list) else type(value).__name__


def plain(value: Any) -> Any:
    """Return a value without members that are undefined in JavaScript."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items() if not isinstance(each, ExtType)}
    return [plain(each) for each in value] if isinstance(value, list) else value


def test_each_command_is_compared() -> None:
    played = {cmd for _, cmd, _ in STEPS} | OTHERS
    assert {name for names in PROTOCOL.values() for name in names} <= played


async def test_frames(packages: BunqueuePackages, gateways: tuple[Gateway, Gateway], tmp_path: Path) -> None:
    queue = f"frames-{secrets.token_hex(6)}"
    async with bunqueue(packages, tmp_path) as (port, _):
        expected = await play(port, queue)
    found = await play(gateways[0].port, queue)
    different = {
        label: changes
        for label, theirs in expected.items()
        if label not in NOT_COMPARED and (changes := differences(theirs, found[label]))
    }
    assert different == DIFFERENCES
