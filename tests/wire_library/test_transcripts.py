"""Replay the transcripts of the 45 documented functions: each reply, and all keys that are left, are as recorded.

A scenario is a list of steps. A step is the name of a function with its keys (a list) and arguments, or a command of
the server, and then its reply; the queue is called `q`, and entries of streams `<entry 1>`, `<entry 2>`, and so on.
The protocol is frozen: a changed reply is a fault. After a new scenario, or a repair that clients must see, write the
replies with `GLIDEMQ_RECORD=1 python -m pytest tests/wire_library/test_transcripts.py`, and read the difference.
"""

import json
import os
import re
import time
from typing import Any

import pytest

from glidemq_py.testing import RespError
from tests.lua.own_support import escaped
from tests.wire_library.support import TRANSCRIPTS, WireQueue, as_dict, transcripts

SCENARIOS = transcripts()
ENTRY = re.compile(r"\b\d{13}-\d+\b")
PLACE = re.compile(r"<entry (\d+)>")
READS: dict[str, tuple[str | int, ...]] = {
    "hash": ("HGETALL",), "string": ("GET",), "set": ("SMEMBERS",), "list": ("LRANGE", 0, -1),
    "zset": ("ZRANGE", 0, -1, "WITHSCORES"), "stream": ("XRANGE", "-", "+"),
}  # fmt: skip


class Replay:
    """A queue, and the entries that its streams have had."""

    def __init__(self, wire: WireQueue):
        self.wire = wire
        self.entries: list[str] = []

    def perform(self, step: list[Any]) -> Any:
        """Return the reply of a step in the form of the transcripts."""
        name, *arguments = json.loads(self._inserted(json.dumps(step)))
        try:
            if arguments and isinstance(arguments[0], list):
                return self.shown(name, self.wire.call(name, *arguments))
            return self.shown(name, self.wire.resp.execute(name, *arguments), str(arguments[0]))
        except RespError as error:
            return {"error": re.sub(r"user_function:\d+: | script: .*", "", self._hidden(str(error)))}

    def _inserted(self, text: str) -> str:
        text = text.replace("glide:{q}", self.wire.base)
        return PLACE.sub(lambda found: self.entries[int(found[1]) - 1], text)

    def shown(self, name: str, reply: Any, key: str = "") -> Any:
        """Return a reply without what differs from run to run."""
        if name in ("XRANGE", "XADD") and not key.endswith("}:stream"):
            return "<id>" if name == "XADD" else [self.shown("", fields) for _, fields in reply]
        if isinstance(reply, list):
            if name in ("HGETALL", "ZRANGE", "moveToActive"):
                return as_dict([self.shown("", each) for each in reply])
            if name == "completeAndFetchNext" and reply[0] == "NEXT_HASH":
                return [self.shown("", each) for each in reply[:4]] + [self.shown("HGETALL", reply[4:])]
            if name == "XPENDING":
                reply = [[entry, consumer, times] for entry, consumer, _, times in reply]
            shown = [self.shown("", each) for each in reply]
            return sorted(shown) if name in ("SMEMBERS", "getActiveListJobIds") else shown
        if name in ("TTL", "PTTL") and reply > 0:
            return "<positive>"
        if isinstance(reply, str) and re.fullmatch(r"\d{13}", reply) and abs(int(reply) / 1000 - time.time()) < 600:
            return "<now>"
        return self._hidden(reply) if isinstance(reply, str) else reply

    def _hidden(self, text: str) -> str:
        def number(found: re.Match[str]) -> str:
            if found[0] not in self.entries:
                self.entries.append(found[0])
            return f"<entry {self.entries.index(found[0]) + 1}>"

        return ENTRY.sub(number, text.replace(self.wire.base, "glide:{q}"))

    def keys(self) -> dict[str, Any]:
        """Return all keys with their content."""
        found: dict[str, Any] = {}
        for key in sorted(self.wire.resp.keys(escaped(self.wire.base) + ":*")):
            command, *rest = READS[self.wire.resp.execute("TYPE", key)]
            content = self.shown(str(command), self.wire.resp.execute(command, key, *rest), key)
            found[key.removeprefix(self.wire.base + ":")] = content
        return found


@pytest.mark.parametrize(
    ("file", "title"), [(file, title) for file, scenarios in SCENARIOS.items() for title in scenarios]
)  # fmt: skip
def test_the_replies_and_keys_are_those_of_the_transcript(wire: WireQueue, file: str, title: str):
    scenario, replay = SCENARIOS[file][title], Replay(wire)
    for number, (step, expected) in enumerate(scenario["steps"]):
        reply = replay.perform(step)
        if RECORDED is not None:
            scenario["steps"][number][1] = reply
        assert reply == scenario["steps"][number][1], f"{title}: {step} replied {reply} instead of {expected}"
    keys = replay.keys()
    if RECORDED is not None:
        scenario["keys"] = keys
        RECORDED.add(file)
    assert keys == scenario["keys"], title


RECORDED: set[str] | None = set() if os.environ.get("GLIDEMQ_RECORD") else None


@pytest.fixture(scope="module", autouse=True)
def recorded() -> Any:
    """Write the transcripts if they are recorded."""
    yield
    for file in RECORDED or ():
        (TRANSCRIPTS / f"{file}.json").write_text(formatted(SCENARIOS[file]), encoding="utf-8")


def formatted(scenarios: dict[str, Any]) -> str:
    """Return scenarios as text, with a step or a key per line."""

    def lines(items: list[str], indent: str) -> str:
        return ",\n".join(indent + item for item in items)

    def text(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    found = []
    for title, scenario in scenarios.items():
        why = f'  "why": {text(scenario["why"])},\n' if "why" in scenario else ""
        steps = lines([text(step) for step in scenario["steps"]], "   ")
        keys = lines([f"{text(key)}: {text(content)}" for key, content in scenario["keys"].items()], "   ")
        found.append(f' {text(title)}: {{\n{why}  "steps": [\n{steps}\n  ],\n  "keys": {{\n{keys}\n  }}\n }}')
    return "{\n" + ",\n".join(found) + "\n}\n"
