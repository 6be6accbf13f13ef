"""Copies and pickles of objects that use a connection."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from glidemq_py import Broadcast, FlowProducer, GlideMQError, Producer, QueueEvents, Worker, sync
from glidemq_py.testing import TestQueue

COPIES: dict[str, Callable[[Any], Any]] = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": pickle.dumps}


@pytest.mark.parametrize("make_copy", COPIES.values(), ids=COPIES)
async def test_what_uses_a_connection_cannot_be_copied(make_copy: Callable[[Any], Any]):
    async with TestQueue("test") as queue:
        job = await queue.add("a", 1)
        async with await queue.job_batches.create() as batch:
            pass
        for each in (
            queue, job, batch, sync.Queue("a"), Worker("a", len), QueueEvents("a"), FlowProducer(), Producer("a"),
            Broadcast("a"), sync.FlowProducer(),
        ):  # fmt: skip
            with pytest.raises(GlideMQError, match=r"cannot be copied or pickled.*pass the name of the queue"):
                make_copy(each)
