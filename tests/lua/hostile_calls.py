"""Plausible arguments for every function of both libraries, for tests that call all of them."""

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tests.inside import declared_keys, pack
from tests.lua.own_support import OwnQueue, library
from tests.wire_library.support import recorded_calls

ORDERING = ["g", 1, 2, 1000, 5000, 1000, 1000]
SOURCES = ("stream", "pending", "lifo", "priority", "scheduled", "completed", "failed", "suspended", "list-active-ids",
           "list-heartbeats", "list-popped", "stall-watch", "dedup-expiry", "waiting-children", "suspects",
           "groupq:g")  # fmt: skip
STATES = ("waiting", "active", "delayed", "prioritized", "completed", "failed", "suspended", "waiting-children",
          "group-waiting")  # fmt: skip


@dataclass
class Scene:
    """A queue with hostile data, and a client's view of it."""

    random: random.Random
    base: str
    now: int
    ids: Sequence[str]
    fetched: Sequence[tuple[str, str, int, int]]
    messages: Sequence[tuple[str, str, int, int]]

    @property
    def id(self) -> str:
        return self.random.choice(self.ids)

    @property
    def token(self) -> tuple[str, str, int, int]:
        return self.random.choice(self.fetched)

    def key(self, suffix: str) -> str:
        return f"{self.base}:{suffix}"

    @property
    def name(self) -> str:
        return self.base.removeprefix("glide:{").removesuffix("}")


def rows(s: Scene) -> list[list[Any]]:
    """Rows of `add`: one of each kind."""
    plain: list[list[Any]] = [["a", "1", "{}"], ["a", "1", "{}", "", 5, 3, 2, 0, 60_000]]
    plain.append(["a", "1", "{}", "", False, 0, False, 1, 0])
    plain.append(["a", "1", "{}", "", False, 0, False, 0, 0, False, ORDERING])
    plain.append(["a", "1", "{}", "", False, 0, False, 0, 0, False, False, ["d", 1000, "debounce"]])
    plain.append(["a", "1", "{}", "", False, 0, False, 0, 0, False, False, False, [s.id, s.name]])
    return s.random.sample(plain, 3)


def finished(s: Scene, tokens: Sequence[tuple[str, str, int, int]], kinds: int) -> list[list[Any]]:
    """Results of attempts, of every kind."""
    found: list[list[Any]] = []
    for token in tokens:
        kind = s.random.randint(1, kinds)
        if kind == 5 and token[0] != "grouped":
            kind = 1
        rest: dict[int, list[Any]] = {
            1: ["null", s.random.choice((0, 1, [1, 60]))] if kinds > 4 else ["null"],
            2: ["boom", "E", "trace", s.random.choice((0, 3)), 10],
            3: [], 4: [100, 0], 5: [100, 0, "front"], 6: [0], 7: ["why", 100],
        }  # fmt: skip
        found.append([kind, *token, *rest[kind]])
    return found


def group_facts(s: Scene) -> list[Any]:
    return ["g", list(s.ids[:5]), 3, 2, [2], 3, 4, 1]


def any_arguments(s: Scene) -> Sequence[Any]:
    """Arguments for a function of ours that has none below yet."""
    return [pack(["h", s.random.choice((0, 1000)), s.id, "", [], 1, False])]


def own_calls() -> dict[str, Callable[[Scene], Sequence[Any]]]:
    """Return arguments for each function of our own library, packed unless they are text."""
    usage: Any = [{"in": 5}, {"usd": 0.5}, 5, 0.5]

    def packed(build: Callable[[Scene], Any]) -> Callable[[Scene], Sequence[Any]]:
        return lambda s: [pack(build(s))]

    def none(_: Scene) -> Sequence[Any]:
        return []

    def an_id(s: Scene) -> Sequence[Any]:
        return [s.id]

    def write(s: Scene) -> list[Any]:
        return [s.random.choice(("w1", "w2")), s.name, "query", 1]

    return {
        "add": packed(lambda s: [rows(s), False]),
        "add_remote_children": packed(lambda s: [s.id, ["glide:{other}:9"]]),
        "blocked_groups": packed(lambda _: ["h", 1000, 1000, 2000, ""]),
        "broadcast_delivery": packed(lambda s: [s.id, "sub"]),
        "broadcast_exchange": packed(lambda s: ["py-b", 5, finished(s, s.messages, 4), False, False, False, "sub", False,  # noqa: E501
                                                "0-0", False]),
        "broadcast_heartbeat": packed(lambda s: ["py-b", "{}", 60_000, list(s.messages), "sub"]),
        "broadcast_publish": packed(lambda s: [[["m", "1", "{}"]], False, 5, 60_000]),
        "broadcast_recover_stalled": packed(lambda _: ["h", 1000, 1000, 1, False, "", "sub", 0]),
        "broadcast_redeliver": packed(lambda s: [s.id, "sub", ""]),
        "broadcast_reattach": packed(lambda _: ["py-b", [], 5, False, "", "sub", "0-0"]),
        "broadcast_subscribe": packed(lambda _: ["new", "$"]),
        "broadcast_subscriptions": lambda _: [""],
        "broadcast_unsubscribe": packed(lambda _: ["sub", True]),
        "charge_budget": packed(lambda s: ["flow", "mark", s.id, usage]),
        "check_budget": lambda _: ["flow"],
        "check_counters": packed(lambda s: [5, list(s.ids), 0]),
        "check_group": packed(group_facts),
        "check_groups": packed(lambda s: ["", 50, s.random.choice(([], ["g"]))]),
        "check_jobs": packed(lambda s: list(s.ids)),
        "check_keys": packed(lambda s: [f"log:{s.id}", "deps:gone"]),
        "check_places": packed(lambda s: [s.random.choice(SOURCES), "", 50]),
        "check_scope": none,
        "children": packed(lambda s: ["parent", "", 50]),
        "children_ended": packed(lambda s: [["parent", "glide:{other}:9", "failed", "boom", "fail_parent"],
                                            ["parent", f"{s.base}:{s.id}", "completed", "1", "fail_parent"]]),
        "clean": packed(lambda s: [s.random.choice(("completed", "failed")), 0, -1, 50, 50, 0]),
        "count_delayed": lambda _: ["1"],
        "count_parked": lambda _: ["0"],
        "counts": none,
        "create_budget": packed(lambda _: ["flow", ["maxTotalTokens", "10"]]),
        "dead_letter_queue": packed(lambda _: ["letters", "failed", ""]),
        "drain": packed(lambda s: [True, s.random.choice(("", "due:", "groups:", "scheduled:", "lifo:")), 50, 0]),
        "event_slice": packed(lambda _: ["0-0", 50, 0]),
        "end_leases": packed(lambda _: [False]),
        "exchange": packed(lambda s: ["py-1", s.random.choice((0, 5)), finished(s, s.fetched, 7), False, False,
                                      False, False, False, False,
                                      s.random.choice((False, [5, 1000])), [5, 1000, [1] * len(s.fetched)]]),
        "flow_nodes": packed(lambda s: [list(s.ids), ["name", "state"]]),
        "child_outcomes": packed(lambda s: list(s.ids)),
        "flow_add": packed(lambda s: ["", 1, [[*_full(), [1, 0, []]], [*_full(), [0, 0, [1]]]], [], [], False,
                                      ["", ["maxTotalTokens", "10"]], False, False, False]),
        "flow_done": lambda _: ["token"],
        "flow_reserve": packed(lambda _: [3, ["custom"], [ORDERING], "token", False]),
        "flow_stage": packed(lambda s: ["token", 1, s.random.choice((0, 1)), [s.key("meta"), "step"]]),
        "flow_withdraw": lambda _: ["token"],
        "flows_due": packed(lambda _: [0, 5]),
        "gauges": none,
        "group_info": lambda _: ["g"],
        "heartbeat": packed(lambda s: ["py-1", '{"lockDuration":30000}', 60_000, list(s.fetched)]),
        "rate_limit_group": packed(lambda _: ["g", 100, 0]),
        "set_result_retention": packed(lambda s: [s.random.choice((0, 100)), "token", 0]),
        "leave": lambda s: s.random.choice((["py-1", "workers"], ["py-b", "sub"])),
        "limit_group": packed(lambda _: ["g", 2, [2, 1000], [5000, 1000]]),
        "limit_queue": packed(lambda s: [5, [5, 1000], s.random.choice((0, 50))]),
        "queue_limits": none,
        "lock": lambda _: ["token", "1000"],
        "repair": packed(lambda s: [["member", s.random.choice(SOURCES), s.id, s.id], ["lost", s.id, ""],
                                  ["ghost", s.id], ["orphan", f"log:{s.id}"], ["twice", s.id, "lifo", "priority"]]),
        "repair_counters": packed(lambda s: [5, list(s.ids), 0]),
        "repair_group": packed(group_facts),
        "update_job": packed(lambda s: [s.random.randint(1, 4), s.id, "5", 0, 0, 3]),
        "notify_parents": none,
        "obliterate": packed(lambda s: [True, 20, "", 1, s.random.choice((0, 0, 5))]),
        "delete_side_keys": packed(lambda s: ["1", "2"]),
        "open_children": lambda _: ["parent"],
        "outbox": packed(lambda _: ["h", 1000, "", []]),
        "page": packed(lambda s: [s.random.choice(STATES), "", 20, ["name", "state"]]),
        "pause": none,
        "promote": an_id,
        "promote_jobs": packed(
            lambda s: [50, 0, s.random.choice(("", "1|9|0@", "2|9|1@x", "1|99|x@1", "3|5|@", "0")),
                       s.random.choice(("", "a"))]
        ),
        "claim_ids": packed(lambda s: [s.id, s.random.choice(("", "q|1")), s.random.choice(("", "q|2"))]),
        "clean_jobs": packed(lambda s: [list(s.ids), s.random.choice(("waiting", "delayed failed")), s.now, 0, True]),
        "discard": an_id,
        "due_times": packed(lambda s: [list(s.ids)]),
        "recover_stalled": packed(lambda _: ["h", 1000, 1000, 1, False, "", 0]),
        "records": packed(lambda s: [list(s.ids), ["name", "state"]]),
        "change_delay": lambda s: [s.id, s.random.choice(("0", "500"))],
        "reattach": packed(lambda s: ["py-1", [], 5, False, s.random.choice(("", "l:0")), []]),
        "registry_add": packed(lambda _: ["member"]),
        "registry_set": packed(lambda _: ["field", "value"]),
        "register_queue": lambda _: ["name"],
        "registry_touch": packed(lambda s: ["member", s.now, "GT", 1000]),
        "remote_children": packed(lambda _: ["glide:{other}:"]),
        "remove": an_id,
        "renew": lambda _: ["token", "1000"],
        "report_usage": packed(lambda s: [s.id, 0, 0, ["usage:model", "m"], *usage, "m", "usd", "{}"]),
        "change_priority": lambda s: [s.id, s.random.choice(("0", "5"))],
        "resume": none,
        "invalidate": lambda _: ["token"],
        "requeue_job": an_id,
        "requeue_jobs": packed(lambda s: [50, 0, -1, 0, s.random.random() < 0.5]),
        "failures_page": packed(lambda s: [[], False, False, False, s.random.choice(["", "1@1", "x@", "@"]), 50]),
        "failures_change": packed(
            lambda s: [s.random.choice(["retry", "purge"]), [], False, False, False, "", s.random.choice([1, 50]), 0]
        ),
        "failure_stats": none,
        "run_failure_policy": packed(lambda s: [s.random.choice([0, 1])]),
        "metrics_by_name": packed(lambda s: [0, s.random.choice([1, 2_000]), s.random.choice([False, "a"]), 0]),
        "set_settings": packed(
            lambda s: [s.random.choice(["failurePolicy", "attemptHistory", "timeline", "metricsByName"]),
                       s.random.choice([False, "1|1|1|1", "60|5", "x"]), "maxLenEvents", "100"]
        ),
        "results_find": packed(lambda s: [s.random.choice(("", "c:-1:1@1", "f:0:", "c:1@1")), 20]),
        "results_page": packed(lambda _: [0, 50, 20, ["completed", "failed"], ["name"]]),
        "results_range": packed(lambda s: [s.random.choice((0, 2)), 5, 0]),
        "results_since": packed(lambda s: [s.now, 0, 20]),
        "revoke": an_id,
        "revoke_jobs": packed(lambda s: [list(s.ids), s.random.choice(("", "waiting", "delayed active"))]),
        "schedulers_due": packed(lambda _: ["h"]),
        "schedulers_fire": packed(lambda s: ["h", [["s", 0, '{"nextRun":1}', '{"nextRun":2}', 2, rows(s)[:1], [1], True, True, s.id, '{"nextRun":3}', 3]],  # noqa: E501
                                            False]),
        "schedulers_put": packed(lambda s: ["s2", 0, "", '{"nextRun":2}', 2, s.random.random() < 0.5, "e",
                                            s.random.random() < 0.5]),
        "schedulers_read": packed(lambda s: s.random.choice((["s"], [False, "", 50]))),
        "signal": packed(lambda s: [s.id, "go", "1"]),
        "store_vector": packed(lambda s: [s.id, "vector", "1234", 0, 0]),
        "stream_chunk": packed(lambda s: [s.id, 0, 0, 5, ["a", "1"]]),
        "sweep_parents": none,
        "sweep_suspended": none,
        "notify_remote_parents": packed(lambda _: ["", 1000]),
        "unlock": lambda _: ["token"],
        "usage_minutes": packed(lambda s: [s.now - s.now % 60_000 - 60_000, 3]),
        "usages": packed(lambda s: [list(s.ids), ["usage:model"]]),
        "version": none,
        "watch_children": packed(lambda _: [0, 1000, 0, 1000]),
        "workers": none,
        "write_abort": packed(lambda s: [*write(s)[:1], "query", 1, s.name, 60_000, "driver", "0", -1, 1]),
        "write_claim": packed(lambda s: [write(s)[0], "query", 1, "token", 0, ""]),
        "write_commit": packed(
            lambda s: [write(s)[0], "query", 1, [["attempt", 1]], 1, 1, 1, 60_000, "1:token", "{}", -1, [s.name]]
        ),
        "write_open": packed(lambda s: [*write(s), 60_000, 1, "", 60_000, "driver"]),
        "write_publish": packed(lambda s: [write(s)[0], "query", 1, 1, 60_000, "1:token"]),
        "write_drain": packed(lambda s: [0, "", 10, 0]),
        "write_finished": packed(lambda s: [write(s)[0], "query", 1, s.name, 60_000, 1, 1]),
        "write_report": packed(lambda s: ["w2", "", 1, 1, "{}", [1, 1], [[s.name, 1, 1]], 1]),
        "write_reports": packed(lambda s: [0, 10]),
        "write_stage": lambda s: [pack([*write(s), "attempt", 1, 60_000, 1, 1, 60_000, ""]), pack([rows(s), False])],
        "writes": none,
    }  # fmt: skip


def _full() -> list[Any]:
    return ["f", "1", "{}", "", 0, 0, 0, 0, 0, False, False, False]


def wire_arguments(s: Scene, name: str) -> tuple[list[str], list[str]]:
    """Return keys and arguments of a function of the wire library: those of a transcript, for a job of the queue."""
    call = s.random.choice(recorded_calls()[name])
    (job_id, entry, *_), text = s.token, json.dumps(call).replace("glide:{q}", s.base)
    if "<entry" in text:
        text = re.sub("<entry [0-9]+>", entry, text)
    else:
        job_id = s.id
    recorded = re.search(r'job:([^":]+)', text)
    if recorded is not None:
        text = re.sub(rf'(?<=[:"]){recorded[1]}(?=")', job_id, text)
    keys, *arguments = json.loads(text)
    return keys, arguments


class QueueWithScenes(Protocol):
    """A queue in an unusual state, and the values that calls name in it."""

    q: OwnQueue

    def scene(self, rng: random.Random) -> Scene: ...


def command_of(queue: QueueWithScenes, name: str, wire: bool, rng: random.Random) -> list[Any]:
    """Return the command that calls a function of the wire library, or of our own."""
    scene = queue.scene(rng)
    if wire:
        keys, arguments = wire_arguments(scene, name)
        whole = [key if "{" in key else queue.q.key(key) for key in keys]
        return ["FCALL", "glidemq_" + name, len(whole), *whole, *arguments]
    own_key = name in ("lock", "unlock", "renew") or name.startswith(("registry_", "register_"))
    key = queue.q.key(f"key:{name}") if own_key else queue.q.meta
    return ["FCALL", library().function(name), 2, *declared_keys(key), *own_calls().get(name, any_arguments)(scene)]
