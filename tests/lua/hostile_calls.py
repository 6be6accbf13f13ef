"""Plausible arguments for every function of both libraries, for tests that call all of them."""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from tests.inside import declared_keys, pack
from tests.lua.own_support import OwnQueue, library
from tests.server.gateway.script import Reader, resolved
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


@cache
def own_calls() -> dict[str, str]:
    """Return the arguments of each function of our own library, as hostile_calls.txt has them."""
    lines = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
    return dict(line.partition(" ")[::2] for line in lines if not line.startswith("#"))


def own_arguments(s: Scene, name: str) -> list[Any]:
    """Return arguments of a function of our own library; some for any function if it is not in hostile_calls.txt."""
    group = ["g", list(s.ids[:5]), 3, 2, [2], 3, 4, 1]
    known: dict[str, Any] = {
        "random": s.random, "id": s.id, "ids": list(s.ids), "base": s.base, "name": s.name, "now": s.now,
        "minute": s.now - s.now % 60_000 - 60_000, "rows": rows(s), "row": rows(s)[0], "fetched": list(s.fetched),
        "messages": list(s.messages), "results": finished(s, s.fetched, 7), "outcomes": finished(s, s.messages, 4),
        "ones": [1] * len(s.fetched), "usage": [{"in": 5}, {"usd": 0.5}, 5, 0.5], "group": group,
        "ordering": ORDERING, "source": s.random.choice(SOURCES), "state": s.random.choice(STATES),
        "write": s.random.choice(("w1", "w2")), "any": s.random.choice((0, 1000)),
    }  # fmt: skip
    given = resolved(Reader(own_calls().get(name, '[h, $any, $id, "", [], 1, false]')).pairs()[0], known)
    return [pack(each) if isinstance(each, list) else each for each in given]


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
    return ["FCALL", library().function(name), 2, *declared_keys(key), *own_arguments(scene, name)]
