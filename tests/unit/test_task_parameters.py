"""Annotations of tasks that name local classes, or what only a type checker sees (tables/tasks.txt has the rest)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_py import GlideMQValidationError, Worker
from tests.inside import job_with

if TYPE_CHECKING:
    from collections import OrderedDict as Unseen


@pytest.fixture
def worker() -> Worker:
    return Worker("tasks")


async def test_names_that_only_the_type_checker_sees(worker: Worker) -> None:
    @worker.task
    def unseen(values: Unseen[str, int]) -> None: ...

    with pytest.raises(
        GlideMQValidationError, match=r"'unseen': its annotations cannot be used: name 'Unseen'.*type checker"
    ):
        await worker.start()


def test_local_classes_are_found(worker: Worker) -> None:
    @dataclass
    class Inner:
        number: int

    @dataclass
    class Outer:
        inner: Inner

    @worker.task
    def local(inner: Inner) -> Any:
        return inner

    assert local.route().handler(job_with({"inner": {"number": 1}})) == Inner(1)

    @worker.task
    def unseen(outer: Outer) -> Any: ...

    with pytest.raises(GlideMQValidationError, match="'unseen': its annotations cannot be used: name 'Inner'"):
        unseen.route()
