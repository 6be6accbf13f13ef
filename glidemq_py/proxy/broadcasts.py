"""Endpoints to publish messages, and to receive those of a subscription as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from starlette.responses import Response

from glidemq_py._features.broadcast.options import compile_subject_matcher, parse_subjects, validate_subscription
from glidemq_py.proxy.answering import answer
from glidemq_py.proxy.endpoint import Endpoint, Exchange
from glidemq_py.proxy.schemas import BOOLEAN, DATA, JOB_NAME, PUBLISH_OPTIONS, TEXT, record
from glidemq_py.proxy.shapes import job_options
from glidemq_py.proxy.streams import stream

__all__ = ["BROADCASTS"]


async def _publish(exchange: Exchange) -> Response:
    subject = exchange.needed("subject")
    options = job_options(exchange.body)
    broadcast = exchange.state.broadcast(exchange.path["name"])
    published = await broadcast.publish(subject, exchange.body.get("data"), **options)
    if published is None:
        return answer({"skipped": True})
    return answer({"id": published, "subject": subject}, 201)


async def _messages(exchange: Exchange) -> Response:
    name, subscription = exchange.path["name"], validate_subscription(exchange.word("subscription"))
    given = exchange.query.get("subjects")
    subjects = parse_subjects("subjects", None if given is None else given.split(","))
    # Create the subscription first: errors become a status, and later messages are delivered.
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
        method="GET", path="/broadcast/{name}/events", summary="Stream the messages of a subscription", run=_messages,
        query={"subscription": {"type": "string", "minLength": 1, "maxLength": 256},
               "subjects": {"type": "string", "description": "Patterns, separated by commas."}},
        needed=("subscription",), answers={200: None},
    ),
)  # fmt: skip
