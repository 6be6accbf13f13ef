"""The rows, arguments and replies that cross the border between Python and Lua, each declared once, with field names.

``python -m tools.generate_rows`` writes both sides from this module: ``glidemq_py/_core/rows.py`` and
``glidemq_py/_core/requests.py``, ``lua/core/rows.lua`` and ``lua/core/functions/_calls.lua``
(``docs/design/protocol.md``, "Rows"). Types, units and the meaning of the fields are described where they are used: in
the header of the Lua function, and in the Python function that calls it.

A field that is appended at the end is compatible: the other side reads false or nothing until it knows the field. The
order of existing fields never changes, because builds of several versions use one queue.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BUILT", "CALLS", "LUA_ROWS", "REPORT_KINDS", "ROWS", "CallLayout"]


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


@dataclass(frozen=True, slots=True)
class CallLayout:
    """Layout of one call.

    Attributes:
        name: of the Lua function.
        request: fields of the packed array in the first argument.
        packed: name of the first argument, if it is packed but not an array of fields.
        args: names of the further arguments, which are plain text or bytes.
        reply: fields of the reply; empty if it is a single value or a list.
        packed_list: True if the reply is a packed list.
        raw_reply: True if the reply is an array of the server's protocol instead of packed bytes.
        has_queue: True if the key is the meta key of a queue; False for a key that belongs to no queue.
        hot: True if the Lua function is called so often that tables of named fields are too slow: it reads its request
            by position (`G.requests`), and passes the fields of its reply in their order.
        repeats: True if a second execution changes nothing more, so that the call is repeated after a lost reply. Calls
            that the Lua function registers as `no-writes` are repeated without it.
    """

    name: str
    request: tuple[str, ...] = ()
    packed: str = ""
    args: tuple[str, ...] = ()
    reply: tuple[str, ...] = ()
    packed_list: bool = False
    raw_reply: bool = False
    has_queue: bool = True
    hot: bool = False
    repeats: bool = False


def _call(
    name: str, request: str = "", *, packed: str = "", args: str = "", reply: str = "", listed: bool = False,
    raw: bool = False, has_queue: bool = True, hot: bool = False, repeats: bool = False,
) -> CallLayout:  # fmt: skip
    return CallLayout(name, _names(request), packed, _names(args), _names(reply), listed, raw, has_queue, hot, repeats)


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

_RECOVERED = "recovered failed cursor held"

CALLS: tuple[CallLayout, ...] = (
    # -- adding
    _call("add", "rows quiet layout", args="mark", reply="now results", hot=True),
    _call("confirm_durable", "marks keep cluster", reply="found node", repeats=True),
    _call(
        "flow_add", "token number rows deps ready quiet budget flow mark layout", reply="now ids refused", repeats=True
    ),
    _call("flow_reserve", "count ids orderings token layout", reply="ids taken costly"),
    _call("flow_stage", "token commit at steps", repeats=True),
    _call("flow_withdraw", args="token", repeats=True),
    _call("flow_done", args="token", repeats=True),
    _call("flows_due", "age count", repeats=True, listed=True),
    # -- working
    _call(
        "exchange",
        "consumer want finished quiet no_metrics held leasing channel idle limiter tokens charges by_name preferred",
        reply="now statuses jobs next_due flags dropped budgets",
        hot=True,
    ),
    _call("reattach", "consumer known want quiet cursor known_ids", reply="now jobs dropped cursor budgets"),
    _call("heartbeat", "consumer info ttl jobs", reply="now statuses commands layout", repeats=True),
    _call(
        "recover_stalled",
        "holder hold lock_duration max_stalled quiet cursor grace",
        reply=f"{_RECOVERED} interval policy",
        repeats=True,
    ),
    _call("run_failure_policy", "is_first", reply="retried deleted more wait", repeats=True),
    _call("remove_deduplication", args="id", repeats=True),
    _call("invalidate", args="token", repeats=True),
    _call("leave", args="consumer group", repeats=True),
    _call("control_workers", "command workers", reply="sent unknown", repeats=True),
    _call("control_reply", "request worker text", repeats=True),
    _call("control_replies", "request workers"),
    _call("pass_wake_up", repeats=True),
    _call("workers"),
    _call("extend_leases", "duration leases", reply="now statuses deadlines", repeats=True),
    _call("release_leases", "owner cursor quiet", reply="released cursor", repeats=True),
    _call("end_leases", "quiet", reply="recovered failed wait outbox_pending", repeats=True),
    # `number`: of a write that appends, so that a repetition is recognized; those without one are not repeated.
    _call("update_job", "kind id text fence processed_on keep message", args="number", repeats=True),
    _call("stream_chunk", "id fence processed_on keep fields", args="number", reply="status entry", repeats=True),
    _call("store_vector", "id field bytes fence processed_on", repeats=True),
    # -- reading
    _call("version", has_queue=False),
    _call("counts"),
    _call("count_parked", args="cursor", listed=True),
    _call("count_delayed", args="band", reply="late band", raw=True),
    _call("page", "state cursor count fields name where newest", reply="rows cursor"),
    _call("records", "ids fields", listed=True),
    _call("event_slice", "after count ids_only", reply="added kept last entries"),
    _call("set_result_retention", "count token only_if_off", repeats=True),
    _call("results_find", "cursor count", reply="cursor found", repeats=True),
    _call("results_range", "start most target", reply="id first last start_job stop stop_job"),
    _call("results_page", "after stop count states fields", reply="rows scanned last removed"),
    _call("results_since", "at after count", reply="number done"),
    _call("failures_page", "reasons name low high cursor count", reply="rows cursor"),
    _call("failure_stats", reply="kept oldest newest retries counts"),
    _call("metrics_by_name", "last minutes name cursor", reply="last rows cursor"),
    _call("gauges", reply="counts oldest workers outbox subscriptions unread"),
    # -- managing
    _call("pause", repeats=True),
    _call("resume", repeats=True),
    _call("set_settings", packed="settings", repeats=True),
    _call("remove", args="id states", repeats=True),
    _call("revoke", args="id states", repeats=True),
    _call("revoke_jobs", "ids states", repeats=True, listed=True),
    _call("discard", args="id", repeats=True),
    _call("change_priority", args="id priority", repeats=True),
    _call("change_rank", args="id rank lifo", repeats=True),
    _call("count_ranks", args="cursor", reply="cursor counts"),
    _call("change_delay", args="id delay", repeats=True),
    _call("due_times", "ids", listed=True),
    _call("promote", args="id"),
    _call("promote_jobs", "batch want cursor name", reply="promoted cursor"),
    _call("requeue_job", args="id completed"),
    _call("requeue_jobs", "batch want left total completed kept", reply="retried left kept"),
    _call("failures_change", "action reasons name low high cursor count total", reply="changed cursor high"),
    _call("drain", "delayed cursor batch total", reply="deleted cursor"),
    _call("clean", "state grace cutoff batch want total", reply="cutoff ids more"),
    _call("clean_jobs", "ids states before total is_last", listed=True),
    _call("delete_side_keys", packed="ids", repeats=True, listed=True),
    _call("obliterate", "force batch cursor has_usage layout", reply="status deleted cursor removed", repeats=True),
    _call("begin_partitions", "above", reply="layout number settings deleted", repeats=True),
    _call("store_layout", "number layout settings deleted", repeats=True),
    _call("create_partitions", "number layout settings", repeats=True),
    _call("restore_layout", "number layout before", repeats=True),
    _call("limit_queue", "concurrency rate ttl", repeats=True),
    _call("queue_limits", reply="concurrency rate_max rate_ms ttl rate_ttl rate_used rate_wait"),
    _call("limit_group", "key concurrency rate bucket", repeats=True),
    _call("set_fair_limits", "key weight concurrency rate max_backlog paused named hold", repeats=True),
    _call("fair_keys", "key after count named", listed=True),
    _call("rate_limit_group", "key ms replace", repeats=True),
    _call(
        "group_info",
        args="key",
        reply="active parked next_seq concurrency rate_max rate_ms capacity refill limited_until",
    ),
    _call("dead_letter_queue", "name on subscription", repeats=True),
    # -- suspend
    _call("signal", "id name data"),
    _call("sweep_suspended", reply="failed next_due more held", repeats=True),
    # -- flows
    _call("children_ended", packed="outcomes", repeats=True),
    _call("notify_parents", repeats=True),
    _call("add_remote_children", "parent members generation", repeats=True),
    _call("depend", packed="rows", repeats=True, listed=True),
    _call("remove_dependency", "id member", repeats=True),
    _call("add_dependency", "id member policy", repeats=True),
    _call("withdraw_dependent", args="id", repeats=True),
    _call("open_children", args="parent", reply="number failure"),
    _call("sweep_parents", repeats=True),
    _call("children", "parent cursor count", reply="rows cursor"),
    _call("flow_nodes", "ids fields", listed=True),
    _call("watch_children", "age pause peer_age peer_pause", reply="rows more peers batches"),
    _call("child_outcomes", packed="ids", reply="outbox_pending rows"),
    _call("notify_remote_parents", "cursor pause", reply="notified cursor left", repeats=True),
    _call("remote_children", packed="empty", repeats=True, listed=True),
    # -- batches
    _call("batch_create", "id stem complete success failure keep quiet layout", repeats=True),
    _call("batch_join", "id stem ids", reply="status ids known stem"),
    _call("batch_change", "id action", repeats=True),
    _call("batch_status", args="id"),
    _call("batch_jobs", "id cursor count", reply="rows cursor"),
    _call("batches", "cursor count", reply="ids cursor"),
    _call("batch_watch", "age", reply="parent members calm more", repeats=True),
    # -- usage and budgets
    _call("create_budget", "flow_id fields", repeats=True),
    _call("check_budget", args="flow_id"),
    _call("charge_budget", "flow_id mark job usage", repeats=True),
    _call(
        "report_usage",
        "id fence processed_on fields tokens costs total_tokens total_cost model unit event",
        reply="status is_first",
        raw=True,
        repeats=True,
    ),
    _call("usages", "ids fields", listed=True),
    _call("usage_minutes", "first minutes", reply="jobs total_tokens total_cost unit models tokens costs minutes"),
    # -- schedulers
    _call("schedulers_read", "name cursor count", reply="now rows cursor"),
    _call("schedulers_put", "name home expected text due overlap event workers"),
    _call("schedulers_due", "holder", reply="now rows wait revision leader", repeats=True),
    _call("schedulers_fire", "holder rows quiet", reply="now outcomes", repeats=True),
    # -- outbox and staged writes
    _call("outbox", "holder hold cursor delivered", reply="held entries writes", repeats=True),
    _call("write_open", "write home query batch ttl create queue keep driver", reply="state ballot", repeats=True),
    _call("write_claim", "write query batch token floor driver", reply="state ballot", repeats=True),
    _call(
        "write_stage",
        "write home query batch attempt seq ttl create unique keep driver",
        args="jobs",
        reply="state id",
        repeats=True,
    ),
    _call(
        "write_commit",
        "write query batch winners first total is_home keep ballot facts last_commit queues",
        reply="state id",
        repeats=True,
    ),
    _call("write_drain", "last_commit cursor batch total", reply="state deleted cursor last_commit", repeats=True),
    _call(
        "write_publish", "write query batch decided keep ballot", reply="state jobs others queues ballot", repeats=True
    ),
    _call("write_finished", "write query batch queue keep jobs others", repeats=True),
    _call(
        "write_abort",
        "write query batch home keep driver cursor changes is_home",
        reply="state queues cursor",
        repeats=True,
    ),
    _call("writes", repeats=True, listed=True),
    _call("write_reports", "first count", listed=True),
    _call("write_report", "write query jobs others facts own queues repeated"),
    # -- broadcast
    _call("broadcast_publish", "rows quiet most age", reply="now results"),
    _call(
        "broadcast_exchange",
        "consumer want finished quiet no_metrics limiter group patterns start idle tokens",
        reply="now statuses jobs next_due flags dropped marks",
    ),
    _call("broadcast_heartbeat", "consumer info ttl jobs group", reply="now statuses", repeats=True),
    _call("broadcast_reattach", "consumer known want quiet cursor group start", reply="now jobs dropped cursor"),
    _call(
        "broadcast_recover_stalled",
        "holder hold lock_duration max_stalled quiet cursor group grace",
        reply=_RECOVERED,
        repeats=True,
    ),
    _call("broadcast_subscribe", "group start", repeats=True),
    _call("broadcast_subscriptions", args="cursor", reply="rows cursor"),
    _call("broadcast_unsubscribe", "group force", repeats=True),
    _call("broadcast_delivery", "id group", reply="exists record place"),
    _call("broadcast_redeliver", "id group once", repeats=True),
    # -- consistency check
    _call("check_scope", reply="broadcast peers"),
    _call("check_places", "source cursor count", reply="rows seen cursor"),
    _call("check_jobs", packed="ids", reply="lost unsure members"),
    _call("check_keys", packed="suffixes", listed=True),
    _call("check_groups", "cursor count names", reply="rows cursor"),
    _call("check_group", _GROUP_FACTS, reply="moved rows"),
    _call("check_counters", "top others peers", listed=True),
    _call("blocked_groups", "holder hold blocked full cursor peers", reply="names cursor", repeats=True),
    _call("repair", packed="rows", repeats=True, listed=True),
    _call("repair_group", _GROUP_FACTS, repeats=True, listed=True),
    _call("repair_counters", "top others peers", repeats=True, listed=True),
    # -- maintenance without a worker
    _call("maintenance_due", "holder hold owed", reply="held busy wait layout", repeats=True),
    # -- backup
    _call("backup_facts", reply="now broadcast features"),
    _call("backup_jobs", "ids parents", reply="rows taken deferred used large"),
    _call("backup_keys", "suffixes cursor", reply="rows taken cursor used"),
    _call("restore_begin", "backup features last", reply="status detail", repeats=True),
    _call("restore_keys", "backup rows"),
    _call("restore_jobs", "backup rows", repeats=True),
    _call("restore_place", "backup rows", repeats=True),
    _call("restore_groups", "backup names", repeats=True),
    _call("restore_end", args="backup", repeats=True),
    # -- keys that belong to no queue
    _call("lock", args="token ttl", has_queue=False),
    _call("unlock", args="token", has_queue=False, repeats=True),
    _call("renew", args="token ttl", has_queue=False, repeats=True),
    _call("registry_add", packed="members", has_queue=False, repeats=True),
    _call("registry_set", packed="fields", has_queue=False, repeats=True),
    _call("register_queue", args="name", has_queue=False, repeats=True),
    _call("claim_ids", packed="claims", has_queue=False, listed=True),
    _call("registry_touch", "member score mode ttl", has_queue=False, repeats=True),
)
"""Every function of the library that Python calls."""
