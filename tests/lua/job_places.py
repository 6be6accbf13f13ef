"""Put a job into each place of a job that has not started, and return its id."""

from tests.lua.own_support import OwnQueue


def waiting(q: OwnQueue) -> str:
    return q.add_job()


def lifo(q: OwnQueue) -> str:
    return q.add_job(lifo=True)


def delayed(q: OwnQueue) -> str:
    return q.add_job(delay=5)


def prioritized(q: OwnQueue) -> str:
    return q.add_job(priority=5)


def in_nodes_priority_list(q: OwnQueue) -> str:
    q.redis("LPUSH", "priority", q.put_job("7", priority=1))
    return "7"


def promoted(q: OwnQueue) -> str:
    job_id = q.add_job(delay=5)
    q.advance(5)
    q.exchange(0)
    return job_id


def waiting_for_retry(q: OwnQueue) -> str:
    q.add_job()
    job = q.take_one()
    q.finish(job.failed(limit=2, backoff=5))
    return job.id


def added_by_node(q: OwnQueue) -> str:
    q.push_entry(q.put_job("7"))
    return "7"


def ours_promoted_by_node(q: OwnQueue) -> str:
    """A peer's promotion writes no `eid`."""
    job_id = q.add_job(delay=5)
    q.redis("ZREM", "scheduled", job_id)
    q.push_entry(job_id)
    q.redis("HSET", f"job:{job_id}", "state", "waiting")
    return job_id
