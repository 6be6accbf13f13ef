"""Messages of the errors about states of jobs."""

from __future__ import annotations

import pytest

from glidemq_py import GlideMQValidationError, Queue


async def test_the_error_of_an_unknown_state_lists_the_states_as_one_writes_them(url: str, queue_name: str) -> None:
    queue = Queue(queue_name, url)
    with pytest.raises(GlideMQValidationError, match=r"must be one of 'waiting', 'active', .*'suspended'$"):
        await queue.revoke("1", states=("bogus",))
    with pytest.raises(GlideMQValidationError, match="did you mean 'delayed'"):
        await queue.clean(0, state="delaye")
    await queue.close()
