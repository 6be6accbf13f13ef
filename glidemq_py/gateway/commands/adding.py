"""Commands that add jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, cast

from glidemq_py._api.coalescer import AddCoalescer
from glidemq_py._api.job_queue import Queue
from glidemq_py._core.layout_errors import LayoutChangedError
from glidemq_py.errors import PayloadTooLargeError
from glidemq_py.gateway.bulk import Bulk, add_usual, begin_usual, usual_rows
from glidemq_py.gateway.push_order import Way
from glidemq_py.gateway.pushing import JOB_FIELDS, GroupFullError, ineffective_policies
from glidemq_py.gateway.repeating import repeated
from glidemq_py.gateway.routed import RoutedJob
from glidemq_py.gateway.session import Begun, Command, Handler, Session
from glidemq_py.gateway.table import Answer, CommandError, Field, Given, Kind, is_map
from glidemq_py.gateway.values import PortableMap

__all__ = ["COMMANDS"]

_QUEUE: Final = Field("queue", Kind.STRICT_QUEUE, required=True)


def _note_policies(session: Session, first: Any) -> None:
    """Log once per connection that options of its jobs have no effect, given its first job: they are often defaults."""
    if not session.has_noted_policies and (names := ineffective_policies(first)):
        session.has_noted_policies = True
        text = f"gateway: {', '.join(names)} of {session.peer}: no effect on jobs without parentId"
        session.state.warnings.warn("policies", text)


async def _push(session: Session, given: Given) -> Answer:
    _note_policies(session, given["job"])
    return {"id": await _add(session, given["queue"], given["job"])}


async def _add(session: Session, name_of_queue: str, given: Given) -> str:
    """Add the job with these fields, which are not checked yet; return its id on the wire."""
    if given.get("repeat"):
        queue = await session.state.queue(name_of_queue)
        async with repeated(session.state.ids, queue, [given]):
            job_id = await _add(session, name_of_queue, {**given, "repeat": None})
        session.state.maintain(queue, now=True)
        return job_id
    async with session.pushing:
        queue = await session.state.queue(name_of_queue)
        session.state.maintain(queue)
        job = await RoutedJob.checked(session.state, queue, given)
        if isinstance(job, str):
            return job
        place = await session.push_order.enter(queue.name, job.way)
        if job.way is Way.ALONE:
            with place:
                return await job.add()
    _placed(session)
    with place:
        return await job.add(place.leave)


def _placed(session: Session) -> None:
    """Let later commands send their jobs: the current one sends its own in this turn of the event loop, before them."""
    session.unplaced.discard(cast("asyncio.Task[None]", asyncio.current_task()))


async def _push_many(session: Session, given: Given) -> Answer:
    jobs = given["jobs"]
    if not jobs:
        return {"ids": []}
    _note_policies(session, jobs[0])
    if len(jobs) == 1 and is_map(jobs[0]):  # the client's usual add; it leaves together with others
        try:
            return {"ids": [await _add(session, given["queue"], jobs[0])]}
        except GroupFullError:
            raise
        except PayloadTooLargeError as error:
            raise PayloadTooLargeError(f"jobs[0].{error.option}", error.size, error.limit) from None
        except CommandError as error:
            raise CommandError(f"jobs[0]: {error}") from None
    async with session.pushing:
        queue = await session.queue(given)
        usual = await usual_rows(session.state.ids, queue, jobs)
        if usual is None:
            with await session.push_order.enter(queue.name, Way.ALONE):
                return {"ids": await _push_all(session, queue, jobs)}
        adder = cast("AddCoalescer", await queue._adder_here())
        place = await session.push_order.enter(queue.name, Way.TOGETHER)
    _placed(session)
    with place:
        session.state.maintain(queue)
        session.state.adding(queue.name)
        try:
            return {"ids": await add_usual(adder, *usual)}
        except LayoutChangedError:
            return {"ids": await _push_all(session, queue, jobs)}


def _begin_push(session: Session, given: Given) -> Begun | None:
    return _begin(session, given, (given["job"],), _push, lambda ids: PortableMap(id=ids[0]))


def _begin_push_many(session: Session, given: Given) -> Begun | None:
    return _begin(session, given, given["jobs"], _push_many, lambda ids: PortableMap(ids=ids))


def _begin(
    session: Session, given: Given, jobs: Sequence[Any], handler: Handler,
    answer: Callable[[list[str]], Answer],
) -> Begun | None:  # fmt: skip
    begun = begin_usual(session, given["queue"], jobs) if jobs else None
    if begun is None:
        return None
    _note_policies(session, jobs[0])
    added, finish = begun

    def end(added: asyncio.Future[Any]) -> Answer | Coroutine[Any, Any, Answer]:
        ids = finish(added)
        return answer(ids) if isinstance(ids, list) else rest(ids)

    async def rest(adding: Coroutine[Any, Any, list[str]]) -> Answer:
        try:
            return answer(await adding)
        except LayoutChangedError:
            return await handler(session, given)  # nothing was added

    return Begun(added, end)


async def _push_all(session: Session, queue: Queue[Any, Any], jobs: Sequence[Any]) -> list[str]:
    # A client that leaves must not stop it halfway: all jobs are added, or none.
    return await session.state.finished(_push_repeated(session, queue, jobs))


async def _push_repeated(session: Session, queue: Queue[Any, Any], jobs: Sequence[Any]) -> list[str]:
    async with repeated(session.state.ids, queue, jobs) as repeats:
        session.state.maintain(queue, now=repeats)
        return await Bulk(session.state.ids, queue, jobs, session.state.added).add()


COMMANDS: Final = (
    Command(
        "PUSH", "core", _push, "Add a job.", (_QUEUE, *JOB_FIELDS), checks_job=True, begin=_begin_push, adds=True,
    ),
    Command(
        "PUSHB", "core", _push_many, "Add up to 100,000 jobs, all or none; each has the fields of `PUSH`.",
        (_QUEUE, Field("jobs", Kind.LIST, required=True)), begin=_begin_push_many, adds=True,
    ),
)  # fmt: skip
