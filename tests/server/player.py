"""Plays transcripts: files of steps and expected outcomes. gateway/transcripts/README.md tells how they are read."""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.server.gateway.script import (
    Case,
    MismatchError,
    Reader,
    ScriptError,
    Step,
    compare,
    compare_error,
    look_up,
    read_cases,
    resolved,
    sent_request,
)

HTTP: Final = frozenset(("GET", "POST", "PUT", "DELETE", "PATCH"))
_COMMAND: Final = re.compile(r"(?:(?P<connection>[A-Z]W?\d?): )?(?P<verb>[^\s(]+)(?P<rest>.*)", re.DOTALL)
_EACH: Final = re.compile(r"each ([\w, ]+) in (.*):")
_FIRST_NAME: Final = re.compile(r"^\$(\w+)(?=[: ])")
_STATUS: Final = re.compile(r"(?:(\d{1,3}|\*):(?: |$))?(.*)", re.DOTALL)
_TIMES: Final = re.compile(r"(\d+) x (.*)", re.DOTALL)
_UNTIL: Final = re.compile(r"(?:within ([\d.]+) )?until (.*)", re.DOTALL)


class Problem(NamedTuple):
    """A step had another outcome than expected.

    Attributes:
        step: The step.
        text: What differs.
    """

    step: Step
    text: str

    @property
    def command(self) -> str:
        """The command of the step."""
        words = self.step.head.split()
        return next((word for word in words if word[0].isalpha() and word[-1] != ":" and len(word) > 1), self.step.head)


class Request(NamedTuple):
    """A command of a step.

    Attributes:
        connection: Name of the connection; its letter names the gateway.
        verb: What is done.
        rest: What follows the verb.
        sign: Sign of the outcome.
        outcome: The expected outcome.
    """

    connection: str
    verb: str
    rest: str
    sign: str
    outcome: str

    def changed(self, **values: str) -> Request:
        """Return the request with these values instead of its own."""
        return self._replace(**values)

    def after_status(self, kind: str, status: int, default: int) -> Request:
        """Compare a status or exit code with the expected one, ``*`` for any; return the request without it."""
        found = _STATUS.fullmatch(self.outcome)
        assert found is not None
        if found[1] != "*" and status != int(found[1] or default):
            raise MismatchError(f"the {kind} is {status}, not {found[1] or default}")
        return self._replace(outcome=found[2])


class Player:
    """Plays a case. A step is a request over HTTP, a call of Python, a verb, or what `_command` makes of it.

    Args:
        log: The log of the test.
        patch: Limits that a case sets, until the test ends.
        known: What names stand for.
    """

    limits = "glidemq_py."
    """Where the limits are that `set` changes."""

    def __init__(self, log: pytest.LogCaptureFixture, patch: pytest.MonkeyPatch, **known: Any):
        self._log, self._patch = log, patch
        self._known: dict[str, Any] = {"now": round(time.time() * 1_000), **known}
        self._verbs: dict[str, Callable[[Request], Any]] = {
            "let": self._let, "set": self._set, "expect": self._expect, "logged": self._logged,
        }  # fmt: skip

    def port_of(self, connection: str) -> int | None:
        """Return the port of requests over HTTP."""
        raise NotImplementedError

    async def play(self, steps: Sequence[Step]) -> Problem | None:
        """Play steps; return the problem of the first one with another outcome."""
        for step in steps:
            try:
                problem = await self._play(step)
            except (MismatchError, ScriptError) as error:
                problem = Problem(step, str(error))
            if problem is not None:
                return problem
        return None

    async def _play(self, step: Step) -> Problem | None:
        if found := _EACH.fullmatch(step.text):
            return await self._for_each(found[1].split(", "), found[2], step.rows)
        if step.text == "table:":
            fields = [resolved(dict(Reader(row.head).pairs()[1]), self._known) for row in step.rows]
            self._known["table"] = [
                {"fields": each, "error": row.outcome} for each, row in zip(fields, step.rows, strict=True)
            ]
            return None
        for row in step.rows or (Step(0, "", ""),):
            sign, outcome = (row.sign, row.outcome) if row.sign else (step.sign, step.outcome)
            try:
                await self._repeat(f"{step.head} {row.head}".strip(), sign, outcome)
            except MismatchError as error:
                raise MismatchError(f"{row.text}: {error}" if row.text else str(error)) from None
        return None

    async def _for_each(self, names: Sequence[str], values: str, steps: Sequence[Step]) -> Problem | None:
        for number, value in enumerate(resolved(Reader(values).value(), self._known)):
            self._known |= zip(names, value if len(names) > 1 else [value], strict=True)
            self._known["n"] = number
            if (problem := await self.play(steps)) is not None:
                return problem
        return None

    async def _repeat(self, head: str, sign: str, outcome: str):
        times = _TIMES.fullmatch(head)
        for number in range(int(times[1]) if times else 1):
            self._known["i"] = number
            await self._once(times[2] if times else head, sign, outcome)

    async def _once(self, head: str, sign: str, outcome: str):
        if awaited := _UNTIL.fullmatch(head):
            await self._until(awaited[2], sign, outcome, float(awaited[1] or 60))
            return
        found = _COMMAND.fullmatch(_FIRST_NAME.sub(lambda name: str(look_up(self._known, name[1])), head))
        if found is None:
            raise ScriptError(f"cannot read {head!r}")
        request = Request(found["connection"] or "A", found["verb"], found["rest"].strip(), sign, outcome)
        if request.verb in HTTP and request.rest.startswith("/"):
            await self._http(request)
        elif request.rest.startswith("("):
            await self._python(request)
        else:
            await self._verbs.get(request.verb, self._command)(request)

    async def _until(self, head: str, sign: str, outcome: str, limit: float):
        """Repeat a request until it has the expected outcome: there is no event for it."""
        start = time.monotonic()
        while True:
            try:
                return await self._once(head, sign, outcome)
            except MismatchError as error:
                if time.monotonic() - start > limit:
                    raise MismatchError(f"after {limit} s, {error}") from None
                await asyncio.sleep(0.01)

    async def _command(self, request: Request):
        raise ScriptError(f"cannot do {request.verb!r}")

    async def _call(self, request: Request, call: Callable[..., Any], errors: type[Exception]):
        """Call what a step names; the error of ``!`` begins with its type."""
        values, named = Reader(request.rest).pairs()
        try:
            found = call(*resolved(values, self._known), **resolved(dict(named), self._known))
            found = [each async for each in found] if isinstance(found, AsyncIterator) else found
            found = await found if inspect.isawaitable(found) else found
        except errors as error:
            text = f"{type(error).__name__}: {error}"
            if request.sign != "!":
                raise MismatchError(text) from error
            self._known["error"] = error
            compare_error(str(resolved(request.outcome, self._known)), {"ok": False, "error": text})
        else:
            if request.sign == "!":
                raise MismatchError(f"returned {found!r}, not the error {request.outcome!r}")
            self._compare(request, found)

    def _compare(self, request: Request, found: Any):
        compare(request.outcome, found, self._known)

    def _compare_answer(self, request: Request, answer: Mapping[str, Any]):
        if request.sign == "!":
            compare_error(str(resolved(request.outcome, self._known)), answer)
        elif answer["ok"] is not True and not request.outcome.startswith("{"):
            raise MismatchError(f"failed: {answer}")
        else:
            self._compare(request, answer)

    async def _let(self, request: Request):
        for name, value in Reader(request.rest).pairs()[1]:
            self._known[name] = resolved(value, self._known)

    async def _set(self, request: Request):
        """Set a limit of a module until the test ends."""
        for name, value in Reader(request.rest).pairs()[1]:
            self._patch.setattr(self.limits + name, value)

    async def _expect(self, request: Request):
        self._compare(request, resolved(Reader(request.rest).value(), self._known))

    async def _logged(self, request: Request):
        kind, _, rest = request.rest.partition(" ")
        lines = self._log.messages
        if kind in ("nothing", "only"):
            wanted = resolved(Reader(rest).value(), self._known) if rest else []
            is_met = lines == wanted
        else:
            wanted = str(resolved(request.rest, self._known))
            is_met = any(wanted in line for line in lines)
        if not is_met:
            raise MismatchError(f"the log is {lines}, not {wanted!r}")

    async def _http(self, request: Request):
        port = self.port_of(request.connection)
        status, answer = await asyncio.to_thread(sent_request, port, request.verb, request.rest, self._known)
        try:
            request = request.after_status("status", status, 400 if request.sign == "!" else 200)
        except MismatchError as error:
            raise MismatchError(f"{error}: {answer}") from None
        if isinstance(answer, dict) and "ok" in answer:
            self._compare_answer(request, answer)
        else:
            self._compare(request, answer)

    async def _python(self, request: Request):
        values, named = Reader(request.rest[1:-1]).pairs()
        owner, _, method = request.verb.removeprefix("$").rpartition(".")
        call = getattr(look_up(self._known, owner), method)
        found = call(*resolved(values, self._known), **resolved(dict(named), self._known))
        self._compare(request, await found if inspect.isawaitable(found) else found)


def cases_of(folder: Path) -> list[Any]:
    """Return parameters for a test of each case of a folder: name of the file, case, number of partitions."""
    found: list[Any] = []
    for path in sorted(folder.glob("*.txt")):
        for case in read_cases(path):
            marks = [pytest.mark.slow] if case.is_slow else []
            for count in case.partitions:
                name = f"{path.stem}: {case.title}" + (f" ({count} partitions)" if count > 1 else "")
                found.append(pytest.param(path, case, count, id=name, marks=marks))
    return found


async def play(player: Player, path: Path, case: Case):
    """Play a case; fail with its title if a step has another outcome."""
    problem = await player.play(case.steps)
    if problem is not None:
        place = f"{path.parent.name}/{path.name}:{problem.step.line}: {problem.step.text}"
        pytest.fail(f"{problem.command}: {case.title}: {problem.text}\n{place}", pytrace=False)
