"""Leases on the in-memory server: with its clock, and without a worker."""

import pytest

from glidemq_py import JobState
from glidemq_py.errors import LeaseLostError
from glidemq_py.testing import TestQueue


async def test_lease_expires_when_the_clock_is_advanced():
    async with TestQueue() as queue:
        job = await queue.add("n", 4, attempts=2)
        (lease,) = await queue.fetch(1, lock_duration=5_000, count_expiry=True)
        queue.clock.advance(4_999)
        assert await queue.fetch(1) == []
        queue.clock.advance(1)
        (again,) = await queue.fetch(1)
        assert (again.id, again.job.attempts_made) == (job.id, 1)
        with pytest.raises(LeaseLostError):
            await lease.complete()
        await again.complete("done")
        assert await job.get_state() is JobState.COMPLETED


async def test_timeout_of_the_job_ends_a_lease():
    async with TestQueue() as queue:
        await queue.add("n", timeout=1_000)
        (lease,) = await queue.fetch(1)
        queue.clock.advance(1_000)
        with pytest.raises(LeaseLostError):
            await lease.complete()
        assert (await queue.get_job_counts()).failed == 1
