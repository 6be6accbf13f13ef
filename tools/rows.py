"""The rows that cross the border between Python and Lua, each declared once, with field names.

The arguments and replies of server calls are declared by their signatures (glidemq_py/_core/calls/__init__.py).
``python -m tools.generate_rows`` writes both sides: ``glidemq_py/_core/rows.py``, ``lua/core/rows.lua`` and
``lua/core/functions/_calls.lua`` (``docs/design/protocol.md``, "Rows"). Types, units and the meaning of the fields are
described where they are used: in the header of the Lua function, and in the Python function that calls it.

A field that is appended at the end is compatible: the other side reads false or nothing until it knows the field. The
order of existing fields never changes, because builds of several versions use one queue.
"""

from __future__ import annotations

__all__ = ["BUILT", "LUA_ROWS", "REPORT_KINDS", "ROWS"]


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_NEW_JOB = "name data opts id delay attempts priority lifo ttl run_at ordering deduplication"
_REPORT = "kind id entry fence processed_on"
_GROUP_FACTS = "name ids covered assumed gaps first top calm"

ROWS: dict[str, tuple[str, ...]] = {
    name: _names(fields)
    for name, fields in {
        # -- adding
        "new_job": f"{_NEW_JOB} parent rank dependencies fair batch",
        "flow_job": f"{_NEW_JOB} flow rank dependencies fair batch",
        "flow_links": "inner multi parents",
        "ordering": "group concurrency rate_max rate_duration tb_capacity tb_rate cost",
        "deduplication": "id ttl mode until_started extend replace",
        "parent": "id queue generation",
        "joined_batch": "member stem",
        "dependencies": "policy refs generation",
        "added_other": "outcome id",
        "fair_key": "key backlog active weight concurrency rate_max rate_ms max_backlog paused limited_until",
        # -- working
        # Ends after the timestamp if the others have the values of a plain job that has never run.
        "fetched_job": (
            "id entry fence name data opts timestamp attempts_made progress stalled_count priority stacktrace"
        ),
        # Appended to `fetched_job` if the job has run before.
        "earlier_run": "signals fallback_index failed_reason failed_type suspect_limit own_keys",
        "lease": "id entry fence processed_on",
        "report": _REPORT,
        "completed": f"{_REPORT} returnvalue keep",
        "failed": f"{_REPORT} reason failed_type stacktrace limit backoff keep next_fallback permanent",
        "released": _REPORT,
        "delayed": f"{_REPORT} delay due data own_keys",
        "group_limited": f"{_REPORT} ms replace how keep",
        "waiting_children": f"{_REPORT} keep data own_keys",
        "suspended": f"{_REPORT} reason timeout keep",
        "retention": "count age",
        "limiter": "max duration",
        "tokens": "max duration counts",
        "held": "jobs suspects limit",
        "leasing": "owner lock expiry limits",
        "preferred": "turns keys",
        "wake_channel": "name cluster",
        "leased": "id entry fence processed_on limit",
        "dropped": "entry id reason",
        "charge": "row key usage",
        "amounts": "tokens costs total_tokens total_cost",
        "budget_verdicts": "verdicts exceeding",
        # -- reading
        "record": "id values",
        "listed": "id position values",
        "condition": "field texts low high contains",
        # Stored in the record of a job, as JSON.
        "name_metrics": "minute name completed failed retried wait run",
        "name_metrics_report": "number rows",
        "failed_attempt": "number started ended worker reason error kind traceback",
        # Followed by the values of the requested fields.
        "numbered_result": "id state",
        "event": "id fields",
        # -- limits
        "rate": "max duration",
        "bucket": "capacity refill",
        # -- flows
        "child_outcome": "parent member how text policy generation",
        "outcome": "how text policy",
        "depending": "waiting ids generation",
        "dependency_answer": "how text",
        "child": "member outcome",
        "waiting_parent": "parent children",
        "relative": "children values",
        "parent_children": "parent members",
        "new_budget": "root fields",
        "refused": "row reason",
        # -- schedulers
        "scheduler": "name home text",
        "due_scheduler": "name home text last_job",
        "last_run": "state finished_on reported is_empty",
        "firing": "name home expected text due jobs instants tracked named last_job_id overlap_text overlap_due runs",
        # -- staged writes
        "winner": "attempt pieces",
        "write": "id state home query idle queues keep ttl changes",
        "write_report": "id query at jobs others facts own queues repeats",
        "added_jobs": "jobs others",
        "added_in_queue": "queue jobs others",
        # -- outbox
        "outbox_entry": "id fields",
        # -- broadcast
        "subscription": "name lag pending released last_delivered consumers",
        "marks": "stream wake",
        # -- consistency check
        "wrong_member": "id member reason mark",
        "lost_job": "id state mark",
        "unsure_job": "id state mark may_be_list_job silent",
        "group_member": "id group sequence slot calm",
        "group": "name issued active next_seq parked",
        "group_facts": _GROUP_FACTS,
        "group_problem": "kind detail",
        "wrong_counter": "name actual expected",
        "repair": "kind first second third",
        # -- batches
        "batch_job": "member state",
        # -- failures
        "failure": "id name reason error failed_type failed_at attempts retries next_retry expires",
        # -- backup
        "backed_up_job": "id due fields",
        "backed_up_key": "suffix kind ttl content",
        "restored_job": "id due fields",
        "placed_job": "id due",
        "restored_key": "suffix kind ttl content first",
    }.items()
}
"""Rows within requests and replies, by name."""

BUILT = (
    "amounts", "held", "parent", "added_other", "dropped", "budget_verdicts", "record", "listed",
    "event", "child",
    "waiting_parent", "outcome", "relative", "refused", "scheduler", "due_scheduler", "last_run", "write",
    "write_report", "added_jobs", "added_in_queue", "subscription", "marks", "wrong_member", "lost_job",
    "unsure_job", "group_member", "group", "group_problem", "wrong_counter", "ended_child",
    "backed_up_job", "backed_up_key", "failed_attempt", "failure", "fair_key", "dependency_answer",
    "batch_job", "name_metrics",
)  # fmt: skip
"""Rows that Lua builds from named fields."""

REPORT_KINDS: dict[str, int] = {
    "completed": 1, "failed": 2, "released": 3, "delayed": 4, "group_limited": 5, "waiting_children": 6, "suspended": 7,
    "completed_plain": 8, "returned": 9,
}  # fmt: skip
"""The first field of each report of an attempt."""

LUA_ROWS: dict[str, tuple[str, ...]] = {
    name: _names(fields)
    for name, fields in {
        "stream_entry": "id fields",
        "stream_read": "stream entries",
        "pending_entry": "id consumer idle deliveries",
        "pending_summary": "count first last consumers",
        "pending_consumer": "name count",
        "scan": "cursor found",
        "time": "seconds microseconds",
        "scored": "member score",
        # Written and read by Lua only.
        "stored_name_metrics": "completed failed retried wait run",
        "durations": "count total",
        "ended_child": "id how text policy members",
        # Flat maps of XINFO GROUPS and XINFO CONSUMERS: names and values in turn.
        "stream_group": "_ name _ consumers _ pending _ last_delivered _ read _ lag",
        "stream_consumer": "_ name _ pending _ idle",
    }.items()
}
"""Rows that only Lua reads: in replies of the server's own commands, and within the library. ``_`` is a position that
is not read."""
