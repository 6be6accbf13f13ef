"""Endpoints about broadcasts: publishing, and the messages of a subscription as server-sent events.

A subscription has one worker here, however many clients listen to it, and none where nobody does: its messages wait
on the server then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from starlette.responses import Response

from glidemq_py.broadcast import BroadcastWorker, Message, compile_subject_matcher
from glidemq_py.broadcast.options import validate_subscription
from glidemq_py.broadcast.subjects import parse_subjects
from glidemq_py.errors import GlideMQError
from glidemq_py.proxy.endpoint import Endpoint, Exchange, answer
from glidemq_py.proxy.schemas import BOOLEAN, DATA, JOB_NAME, PUBLISH_OPTIONS, TEXT, record
from glidemq_py.proxy.shapes import job_options
from glidemq_py.proxy.streams import frame, stream

__all__ = ["BROADCASTS", "SubscriptionHub"]

_AGAIN_MS: Final = 1


class _Listener:
    """One client: room for one message, so that hardly any is lost with it."""

    def __init__(self, matches: Callable[[str], bool] | None) -> None:
        self.matches = matches
        self.waiting: asyncio.Queue[str] = asyncio.Queue(1)
        self.gone = asyncio.Event()

    async def take(self, text: str) -> bool:
        """Wait until the client has room for it; False if it has left."""
        putting = asyncio.ensure_future(self.waiting.put(text))
        leaving = asyncio.ensure_future(self.gone.wait())
        try:
            await asyncio.wait((putting, leaving), return_when=asyncio.FIRST_COMPLETED)
            return not leaving.done()
        finally:
            putting.cancel()
            leaving.cancel()


class SubscriptionHub:
    """The clients of one subscription, and its worker while there are any.

    Args:
        worker_of: makes the worker, from its handler.
        gone: called when the last client has left.
    """

    def __init__(self, worker_of: Callable[[Any], BroadcastWorker], gone: Callable[[], object]) -> None:
        self._worker = worker_of(self._hand_out)
        self._gone = gone
        self._listeners: set[_Listener] = set()
        self._starting = asyncio.Lock()
        self._started = False

    async def _hand_out(self, message: Message[Any, Any]) -> None:
        listeners = [each for each in self._listeners if each.matches is None or each.matches(message.subject)]
        text = frame("message", _shape(message))
        taken = await asyncio.gather(*(listener.take(text) for listener in listeners))
        if not any(taken) and (listeners or not self._listeners):
            # Whoever it was for has left since it was taken: it is for those who come next.
            message.move_to_delayed(_AGAIN_MS)

    async def follow(self, matches: Callable[[str], bool] | None) -> AsyncIterator[str]:
        """The messages that match, as events, from now on."""
        listener = _Listener(matches)
        self._listeners.add(listener)
        try:
            async with self._starting:
                if not self._started:
                    await self._worker.start()
                    self._started = True
            while True:
                yield await listener.waiting.get()
        finally:
            listener.gone.set()
            self._listeners.discard(listener)
            if not self._listeners:
                await self.close()

    async def close(self) -> None:
        """Stop working; idempotent."""
        self._gone()
        await self._worker.close()


def _shape(message: Message[Any, Any]) -> dict[str, Any]:
    try:
        data = message.data
    except GlideMQError:
        data = None
    return {"id": message.id, "subject": message.subject, "data": data, "timestamp": message.timestamp}


async def _publish(exchange: Exchange) -> Response:
    subject = exchange.needed("subject")
    options = job_options(exchange.body["opts"], "opts") if "opts" in exchange.body else {}
    broadcast = exchange.state.broadcast(exchange.path["name"])
    published = await broadcast.publish(subject, exchange.body.get("data"), **options)
    if published is None:
        return answer({"skipped": True})
    return answer({"id": published, "subject": subject}, 201)


async def _messages(exchange: Exchange) -> Response:
    name, subscription = exchange.path["name"], validate_subscription(exchange.word("subscription"))
    given = exchange.query.get("subjects")
    subjects = parse_subjects("subjects", None if given is None else given.split(","))
    # Whatever keeps it from being made is told by a status; and it gets what is published from now on.
    await exchange.state.broadcast(name).subscribe(subscription)
    matches = compile_subject_matcher(subjects)

    async def frames() -> AsyncIterator[str]:
        async for each in exchange.state.subscription(name, subscription).follow(matches):
            yield each

    return stream(frames(), exchange)


BROADCASTS: Final = (
    Endpoint(
        method="POST", path="/broadcast/{name}", summary="Publish a message to every subscription", run=_publish,
        body=record(["subject"], subject=JOB_NAME, data=DATA, opts=PUBLISH_OPTIONS),
        example={"subject": "orders.created", "data": {"order": 1}},
        answers={201: record(["id", "subject"], id=TEXT, subject=TEXT), 200: record(["skipped"], skipped=BOOLEAN)},
    ),
    Endpoint(
        method="GET", path="/broadcast/{name}/events", summary="The messages that a subscription gets", run=_messages,
        query={"subscription": {"type": "string", "minLength": 1, "maxLength": 256},
               "subjects": {"type": "string", "description": "Patterns, separated by commas."}},
        needed=("subscription",), answers={200: None},
    ),
)  # fmt: skip
