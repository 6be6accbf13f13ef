"""Callables given by users are validated immediately."""

import functools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from glidemq_py import BroadcastWorker, GlideMQValidationError, Queue, QueueEvents, Worker, sync
from tests.inside import check_callable


def takes_none(): ...


def takes_one(one: Any): ...


def takes_two(one: Any, two: Any): ...


async def yields(worker: Any) -> AsyncIterator[None]:
    yield


class Method:
    def serialize(self, value: Any) -> str:
        return str(value)

    def deserialize(self, text: str):
        return text

    def __call__(self, one: Any, *, more: int = 0): ...


@pytest.mark.parametrize(
    "function",
    [takes_one, Method(), Method().__call__, print, int, functools.partial(takes_two, 1), lambda *_: None,
     lambda a, b=1: None, lambda a, *, b=1: None],
)  # fmt: skip
def test_callables_are_accepted(function: Any):
    assert check_callable("option", function, "job") is function


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (5, r"must be a callable with the parameters \(job\)"),
        (None, r"must be a callable with the parameters \(job\)"),
        (takes_none, r"with the parameters \(job\), not \(\): too many"),
        (takes_two, r"not \(one, two\): missing .*'two'"),
        (lambda *, job: None, r"not \(\*, job\)"), (functools.partial(takes_one, 1), "too many"),
    ],
)  # fmt: skip
def test_non_callables_are_rejected(function: Any, why: str):
    with pytest.raises(GlideMQValidationError, match=why) as caught:
        check_callable("option", function, "job")
    assert (caught.value.option, caught.value.value) == ("option", function)


REFUSED: Any = {
    "lifespan": [
        lambda: Worker("q", takes_one, lifespan=takes_none),  # type: ignore[arg-type]
        lambda: Worker("q", takes_one, lifespan=yields),  # type: ignore[arg-type]
        lambda: BroadcastWorker("q", takes_one, subscription="s", lifespan=takes_two),  # type: ignore[arg-type]
    ],
    "handler": [
        lambda: Worker("q", takes_none),  # type: ignore[arg-type]
        lambda: Worker("q", takes_two, batch={"size": 2}),  # type: ignore[arg-type]
        lambda: Worker("q", yields),
        lambda: BroadcastWorker("q", takes_two, subscription="s"),  # type: ignore[arg-type]
        lambda: BroadcastWorker("q", 5, subscription="s"),  # type: ignore[arg-type]
    ],
    "listener": [
        lambda: Worker("q").on("completed", takes_one),
        lambda: Worker("q").on("drained", takes_two),
        lambda: Worker("q").on("error", takes_none),
        lambda: QueueEvents("q").on("added", takes_two),  # type: ignore[arg-type]
        lambda: sync.QueueEvents("q").on("*", takes_none),  # type: ignore[arg-type]
    ],
    "backoff_strategies.mine": [lambda: Worker("q", backoff_strategies={"mine": takes_one})],  # type: ignore[dict-item]
    "serializer.serialize": [lambda: Queue("q", serializer=Method), lambda: sync.Queue("q", serializer=Method)],  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("option", "make"), [(name, each) for name, all_ in REFUSED.items() for each in all_])
def test_every_option_reports_an_invalid_callable(option: str, make: Any):
    with pytest.raises(GlideMQValidationError) as caught:
        make()
    assert caught.value.option == option


def test_listeners_that_fit():
    worker = Worker("q")
    worker.on("completed", takes_two)
    worker.on("failed", takes_two)
    worker.on("closed", takes_none)
    worker.on("stalled", [].append)
