"""The rows that Python builds and reads as lists, and those that only Lua reads, with the names of their fields.

The other rows are declared in Python, by `declared` and `fields_of`, as the arguments and replies of server calls are
by their signatures (``glidemq_py/_core/calls/__init__.py``; ``docs/design/protocol.md``, "Rows"). Types, units and the
meaning of the fields are described where they are used: in the header of the Lua function, and in the Python function
that calls it. ``_`` is a position that is not read.
"""

from __future__ import annotations

ROWS: dict[str, tuple[str, ...]] = {
    name: tuple(fields.split())
    for name, fields in {
        # -- adding
        "flow_links": "inner multi parents",
        "deduplication": "id ttl mode until_started extend replace",
        "parent": "id queue generation",
        "joined_batch": "member stem",
        "dependencies": "policy refs generation",
        # -- working
        "lease": "id entry fence processed_on",
        "report": "kind id entry fence processed_on",
        "retention": "count age",
        "limiter": "max duration",
        "tokens": "max duration counts",
        "held": "jobs suspects limit",
        "dropped": "entry id reason",
        "charge": "row key usage",
        "amounts": "tokens costs total_tokens total_cost",
        # -- reading
        "record": "id values",
        "listed": "id position values",
        # Stored in the record of a job, as JSON.
        "failed_attempt": "number started ended worker reason error kind traceback",
        "event": "id fields",
        # -- limits
        "rate": "max duration",
        "bucket": "capacity refill",
        # -- flows
        "outcome": "how text policy",
        "depending": "waiting ids generation",
        "child": "member outcome",
        "waiting_parent": "parent children",
        "relative": "children values",
        "parent_children": "parent members",
        "new_budget": "root fields",
        "refused": "row reason",
        # -- schedulers
        "last_run": "state finished_on reported is_empty",
        # -- staged writes
        "winner": "attempt pieces",
        "write_report": "id query at jobs others facts own queues repeats",
        "added_jobs": "jobs others",
        "added_in_queue": "queue jobs others",
        # -- outbox
        "outbox_entry": "id fields",
        # -- broadcast
        "marks": "stream wake",
        # -- consistency check
        "wrong_member": "id member reason mark",
        "lost_job": "id state mark",
        "unsure_job": "id state mark may_be_list_job silent",
        "group_member": "id group sequence slot calm",
        "group_problem": "kind detail",
        "wrong_counter": "name actual expected",
        "repair": "kind first second third",
        # -- batches
        "batch_job": "member state",
        # -- backup
        "restored_job": "id due fields",
        # -- in replies of the server's own commands
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
