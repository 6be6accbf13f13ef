"""`assert_enqueued`: the jobs it matches, and its failure messages."""

from datetime import timedelta

import pytest

from glidemq_py import GlideMQValidationError
from glidemq_py.testing import TestQueue, assert_enqueued, assert_not_enqueued


async def test_jobs_match_by_attributes():
    async with TestQueue() as queue:
        await queue.add("mail", {"to": "ann", "lang": "en"})
        await queue.add("mail", {"to": "bob", "lang": "en"}, delay=timedelta(minutes=5))
        await queue.add("report", 7, priority=3, job_id="r-7")
        await queue.add("held", ordering={"key": "k", "concurrency": 1})
        assert len(await queue.assert_enqueued()) == 4
        assert len(await queue.assert_enqueued("mail")) == 2
        assert len(await queue.assert_enqueued("mail", count=2)) == 2
        (ann,) = await queue.assert_enqueued(contains={"to": "ann"})
        assert ann.data == {"to": "ann", "lang": "en"}
        await queue.assert_enqueued("mail", {"to": "bob", "lang": "en"}, delay=300_000, count=1)
        await queue.assert_enqueued(data=7, priority=3, job_id="r-7")
        await queue.assert_enqueued(where=lambda job: job.name.startswith("rep"))
        await queue.assert_enqueued("nothing", count=0)
        await assert_enqueued(queue, "held")
        await assert_not_enqueued(queue, "mail", contains={"to": "eve"})


async def test_failure_lists_jobs_and_differences():
    async with TestQueue("post") as queue:
        await queue.add("other", {"x": 1})
        await queue.add("mail", {"to": "bob"})
        with pytest.raises(AssertionError) as failure:
            await queue.assert_enqueued("mail", contains={"to": "ann", "lang": "en"})
        text = str(failure.value)
        assert "expected a job in queue 'post' with name='mail', contains={'lang': 'en', 'to': 'ann'}" in text
        assert "0 of 2 match" in text
        assert "waiting 'mail' (id 2): {'to': 'bob'}\n      data['to']: 'bob' instead of 'ann'" in text
        assert "data has no 'lang'" in text
        assert text.index("'mail' (id 2)") < text.index("'other' (id 1)")  # best match first
        with pytest.raises(AssertionError, match="expected 3 job"):
            await queue.assert_enqueued("mail", count=3)
        with pytest.raises(AssertionError, match="expected no job"):
            await queue.assert_not_enqueued("mail")


async def test_failure_reports_an_empty_queue():
    async with TestQueue() as queue:
        with pytest.raises(AssertionError, match="nothing is in the queue"):
            await queue.assert_enqueued("mail")


async def test_finished_jobs_are_not_enqueued():
    async with TestQueue() as queue, queue.worker(lambda _: None) as worker:
        await queue.add("mail")
        await worker.run_until_idle()
        await queue.assert_not_enqueued()


async def test_invalid_count_is_rejected():
    async with TestQueue() as queue:
        with pytest.raises(GlideMQValidationError, match="count"):
            await queue.assert_enqueued("n", count=-1)
