"""Buttons and forms of the pages, derived from the actions that have one."""

from __future__ import annotations

import json as stdlib_json
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Final, cast

from glidemq_py._core import json_text as json
from glidemq_py._core.limits import RateLimit
from glidemq_py._operate.action import Action, Button, ManyAction
from glidemq_py._operate.actions import ACTIONS
from glidemq_py._operate.job_actions import JobsAction
from glidemq_py.dashboard.visit import parse_filter
from glidemq_py.errors import GlideMQError

LABELS: Final = {
    "name": "Name", "data": "Data (JSON)", "options": "Options (JSON)", "key": "Key", "weight": "Weight",
    "concurrency": "Concurrency", "max": "Jobs", "duration": "Window of the rate limit, ms",
    "max_backlog": "Most waiting",
}  # fmt: skip
"""Fields that users type, and what the pages call them."""


class FormError(GlideMQError, ValueError):
    """A field of a form is invalid, in the words of the page."""


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a submitted form, each a list of values; ``hidden``: see `parse_filter`."""

    fields: dict[str, list[str]]
    hidden: tuple[str, ...] = ()

    def text(self, name: str) -> str:
        """Return a field, or ""."""
        return self.fields.get(name, [""])[0]

    def all(self, name: str) -> tuple[str, ...]:
        """Return all values of a field."""
        return tuple(self.fields.get(name, ()))

    def json(self, name: str) -> Any:
        """Return a field that holds JSON; an empty one is null.

        Raises:
            FormError: it holds something else.
        """
        text = self.text(name)
        try:
            return json.loads(text) if text.strip() else None
        except ValueError:
            raise FormError(f"{LABELS.get(name, name)}: {_problem_of_json(text)}.") from None

    def whole(self, name: str) -> int | None:
        """Return a field that holds a whole number; None if it is empty.

        Raises:
            FormError: it holds something else.
        """
        text = self.text(name).strip().replace(",", "")
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 16):
            raise FormError(f"{LABELS.get(name, name)}: {text[:60]!r} is not a whole number.")
        return int(text)


def _problem_of_json(text: str) -> str:
    """Return the mistake in a text that is not JSON, with its position."""
    try:
        stdlib_json.loads(text)
    except stdlib_json.JSONDecodeError as error:
        return f"not valid JSON in line {error.lineno}, column {error.colno}: {error.msg}"
    except (ValueError, RecursionError):
        pass
    return "not valid JSON"  # only the standard library accepts it, such as NaN


@dataclass(frozen=True, slots=True)
class Change:
    """A kind of form: the class of an action, and how the pages offer it."""

    action: type[Action]
    button: Button

    @property
    def kind(self) -> str:
        """`Action.kind`, which the visitor's access must allow."""
        return self.action.kind

    @property
    def is_of_jobs(self) -> bool:
        """True if it changes any number of jobs that are selected on a page."""
        return issubclass(self.action, JobsAction)

    def create(self, form: Form) -> Action:
        """Make the action from the form. Text that is empty is not given, if the field has a default."""
        if self.is_of_jobs:
            return self.action(**{"queue": form.text("q"), **_jobs(form)})
        given: dict[str, Any] = {}
        for each in fields(self.action):
            if each.name in _READ:
                given[each.name] = _READ[each.name](form)
            elif str(each.type).startswith("str") and (form.text(each.name) or each.default is MISSING):
                given[each.name] = form.text(each.name)
        return self.action(**given)

    def asks(self, form: Form) -> bool:
        """Return True if a page asks for confirmation first: the action destroys something, or changes many jobs."""
        return self.action.destroys or self.is_bulk(form)

    def is_bulk(self, form: Form) -> bool:
        """Return True if the action changes jobs that the form does not name."""
        return issubclass(self.action, ManyAction) and bool(form.text("of_filter") or not form.all("id"))

    def report(self, number: int) -> str:
        """Return the text of the result."""
        return self.button.done.format(n=f"{number:,}", s="" if number == 1 else "s") if number else "nothing changed"


def _jobs(form: Form) -> dict[str, Any]:
    ids = form.all("id")
    if not form.text("of_filter"):
        if not ids:
            raise FormError("Select at least one job, or all jobs that match.")
        return {"ids": ids}
    wanted, job_id = parse_filter(form.text("filter"), form.text("state") or None, form.hidden)
    if job_id is not None:
        return {"ids": (job_id,)}
    if "error_shape" in form.fields:  # a group of failures
        wanted = replace(
            wanted, name=form.text("job_name"), error_type=form.text("error_type"),
            error_shape=form.text("error_shape"),
        )  # fmt: skip
    return {"wanted": wanted}


def _rate_limit(form: Form) -> Any:
    most, window = form.whole("max"), form.whole("duration")
    if (most is None) != (window is None):
        raise FormError("A rate limit needs both a number of jobs and a window in ms.")
    return most is not None and window is not None and RateLimit(most, window)


def _weight(form: Form) -> int | None:
    weight = form.whole("weight")
    if form.text("key"):
        return weight or 1
    if weight is not None:
        raise FormError("A weight needs a fair key.")
    return None


def _options(form: Form) -> dict[str, Any]:
    options = form.json("options")
    if options is not None and not isinstance(options, dict):
        raise FormError('Options (JSON): must be an object such as {"delay": 5000}.')
    return cast("dict[str, Any]", options or {})


_READ: Final[dict[str, Callable[[Form], Any]]] = {
    "queue": lambda form: form.text("q"), "worker": lambda form: form.text("worker"),
    "group": lambda form: form.text("key"), "ids": lambda form: form.all("id"),
    "reason": lambda form: tuple(filter(None, form.all("reason"))), "data": lambda form: form.json("data"),
    "concurrency": lambda form: form.whole("concurrency") or False, "rate_limit": _rate_limit, "weight": _weight,
    "max_backlog": lambda form: form.whole("max_backlog") or False, "options": _options,
}  # fmt: skip
"""How the fields of actions are read from a form, unless they are the text with their name."""

CHANGES: Final[dict[str, Change]] = {
    button.change: Change(action, button)
    for action in ACTIONS.values()
    for button in (action.button, action.button_of_messages)
    if button is not None
}
"""Kinds of forms by the value of their field ``change``."""

BUTTONS: Final = [each for each in CHANGES.values() if each.button.label]
"""Those that pages of jobs have."""
