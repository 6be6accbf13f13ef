"""Arguments and options that several commands share, and the completion of arguments in the shell.

Names of queues, workers and schedules are read from the server that the command would use. A shell waits for them, so a
server that does not answer within two seconds completes nothing, and no error is ever printed into the command line.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from glidemq_py import _operate as operate
from glidemq_py._core.logs import get_logger
from glidemq_py._core.record import JobState
from glidemq_py._features.failed_attempts import FailureReason
from glidemq_py._operate.parsing import Param
from glidemq_py.cli.settings import find_settings
from glidemq_py.errors import GlideMQValidationError

if TYPE_CHECKING:
    from glidemq_py._operate.operating import Operator

_ANSWER_S: Final = 2.0
_THREAD: Final = "glidemq-completion"
_NEEDED: Final = (
    "glidemq_py._client.async_client",
    "glidemq_py._client.shared_clients",
    "glidemq_py._operate.operating",
)
"""Modules that a call to the server imports, with GLIDE: a third of a second or more."""
_SHOWN: Final = 200
"""Queues of a long list that are completed; a further letter shortens it."""


def words(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a completion by fixed words."""
    listed = list(known)

    def complete(incomplete: str) -> list[str]:
        return [word for word in listed if word.startswith(incomplete)]

    return complete


def complete_queue(context: typer.Context, incomplete: str) -> list[str]:
    """Complete names of queues: of the server, or of the settings without one; [] if it cannot be asked."""
    return _ask(context, lambda operator: operator.list_queues(), incomplete)


def complete_worker(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the ids of the live workers of the queue that was named; [] if it cannot be asked."""

    async def read(operator: Operator, queue: str) -> list[str]:
        return [each.id for each in await operator.get_workers(queue)]

    return _ask_about_queue(context, read, incomplete)


def complete_schedule(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the names of the schedules of the queue that was named; [] if it cannot be asked."""

    async def read(operator: Operator, queue: str) -> list[str]:
        return [each.name for each in await operator.get_schedules(queue)]

    return _ask_about_queue(context, read, incomplete)


def _ask_about_queue(
    context: typer.Context, read: Callable[[Operator, str], Awaitable[list[str]]], incomplete: str
) -> list[str]:
    queue = context.params.get("queue")
    return _ask(context, lambda operator: read(operator, queue), incomplete) if isinstance(queue, str) else []


def _ask(context: typer.Context, read: Callable[[Operator], Awaitable[list[str]]], incomplete: str) -> list[str]:
    url, prefix = _setting(context, "url"), _setting(context, "prefix")
    for module in _NEEDED:  # their time is not the server's
        import_module(module)
    names: list[str] = []

    def ask() -> None:
        with suppress(Exception):  # a completion has nowhere to report it
            names.extend(asyncio.run(_read(url, prefix, read)))

    # GLIDE cannot be interrupted while it connects.
    asking = threading.Thread(target=ask, name=_THREAD, daemon=True)
    with _silence():
        asking.start()
        asking.join(_ANSWER_S)
    return [name for name in names if name.startswith(incomplete)][:_SHOWN]


@contextmanager
def _silence() -> Generator[None]:
    """Print nothing to stderr, where the command line is."""
    log = get_logger("glidemq_py")
    level = log.level
    log.setLevel(logging.CRITICAL)
    errors = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(errors, 2)
        os.close(errors)
        log.setLevel(level)


async def _read(url: str | None, prefix: str | None, read: Callable[[Operator], Awaitable[list[str]]]) -> list[str]:
    settings = find_settings(url, prefix)
    if settings.url is None:
        return list(settings.queues)
    async with operate.operating.Operator(settings.url, prefix=settings.prefix) as operator:
        return await read(operator)


def _setting(context: Any, name: str) -> str | None:
    """Return an option of this command or, before the noun, of the commands above it."""
    while context is not None:
        if context.params.get(name):
            return str(context.params[name])
        context = context.parent
    return None


_COMPLETIONS: Final[dict[str, Callable[..., list[str]]]] = {
    "queue": complete_queue, "worker": complete_worker, "schedule": complete_schedule, "state": words(JobState),
    "reason": words(FailureReason),
}  # fmt: skip


def hint_of(param: Param, kind: Any) -> Any:
    """Return the annotation of a parameter for typer; ``kind``: the type of its text."""
    of: Any = words(param.words) if param.words else param.of
    given: dict[str, Any] = {
        "metavar": param.metavar, "help": param.text, "min": param.least, "max": param.most,
        "autocompletion": of if callable(of) else _COMPLETIONS.get(of),
    }  # fmt: skip
    info = typer.Option(*param.flags, **given) if param.flags else typer.Argument(**given, show_default=False)
    return Annotated[kind, info]


def value_given(param: Param, value: Any) -> Any:
    """Return the value of a parameter. Raises GlideMQValidationError."""
    if param.of == "data" and value == "-":
        try:
            value = typer.get_text_stream("stdin").read()
        except UnicodeDecodeError as error:
            problem = f"stdin is not {error.encoding} text: {error.reason}"
            raise GlideMQValidationError("DATA", None, problem) from None
    if param.read is None or (value is None and not param.is_many):
        return value
    return param.read((param.flags or [str(param.metavar)])[0], value or [] if param.is_many else value)
