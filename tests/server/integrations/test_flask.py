"""Flask: queues of an application's configuration, and its context in handlers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from glidemq_py import GlideMQError, GlideMQValidationError, Job, Queue, Worker

flask = pytest.importorskip("flask")

from glidemq_py.integrations.flask import AppContextMiddleware, GlideMQ  # noqa: E402

mq = GlideMQ()


@pytest.fixture
def app(url: str, queue_name: str) -> Iterator[Any]:
    app = flask.Flask("shop")
    app.config["GLIDEMQ_URL"] = url
    app.config["GLIDEMQ_QUEUES"] = {queue_name: {"default_job_options": {"attempts": 5}}}
    mq.init_app(app)
    yield app
    mq.close(app)


def test_views_add_jobs_with_the_configured_options(app: Any, queue_name: str):
    @app.post("/welcome/<name>")
    def welcome(name: str) -> dict[str, Any]:
        job = mq.queue(queue_name).add("welcome", {"to": name})
        return {"job": job.id, "same": mq.queue(queue_name) is mq.queue(queue_name)}

    with app.test_client() as client:
        assert client.post("/welcome/ada").json == {"job": "1", "same": True}
    with app.app_context():
        job = mq.queue(queue_name).get_job("1")
        assert job is not None
        assert (job.data, job.opts["attempts"]) == ({"to": "ada"}, 5)


def test_prefix_applies_to_queues_that_are_not_listed(app: Any, queue_name: str):
    app.config["GLIDEMQ_PREFIX"] = "shop"
    with app.app_context():
        mq.queue(f"{queue_name}-other").add("a")
        assert mq.queue(queue_name).count() == 0
        assert mq.queue(f"{queue_name}-other").options.prefix == "shop"
        mq.queue(f"{queue_name}-other").obliterate(force=True)


def test_mistakes_are_reported(app: Any):
    with pytest.raises(RuntimeError, match="application context"):
        mq.queue("emails")
    other = flask.Flask("other")
    with other.app_context(), pytest.raises(GlideMQValidationError, match=r"init_app"):
        mq.queue("emails")
    for mistake in (["emails"], {"emails": "options"}):
        other.config["GLIDEMQ_QUEUES"] = mistake
        with pytest.raises(GlideMQValidationError, match="GLIDEMQ_QUEUES"):
            mq.init_app(other)
    other.config["GLIDEMQ_QUEUES"] = {"emails": {"compression": "zip"}}
    with pytest.raises(GlideMQValidationError, match="compression"):
        GlideMQ(other)


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_handlers_have_the_application_context(app: Any, url: str, queue_name: str, kind: str):
    ended: list[Any] = []
    app.teardown_appcontext(ended.append)

    def read(job: Job) -> str:
        flask.g.job = job.id
        if job.data == "fail":
            raise ValueError("no printer")
        return f"{flask.current_app.name} {flask.g.job}"

    async def read_async(job: Job) -> str:
        return read(job)

    async with Queue(queue_name, url) as queue:
        handler: Any = read if kind == "thread" else read_async
        middleware = [AppContextMiddleware(app)]
        async with Worker(queue_name, handler, url, middleware=middleware, log_failures=False) as worker:
            assert await queue.add_and_wait("read", timeout=100_000) == "shop 1"
            await queue.add("read", "fail")
            await worker.drain()
    assert [type(error) for error in ended] == [type(None), ValueError]


def test_tasks_add_over_the_connection_of_the_application(url: str, queue_name: str):
    worker = Worker(queue_name)
    own = GlideMQ(workers=[worker])

    @worker.task(attempts=4)
    def welcome(name: str) -> None: ...

    def application(prefix: str) -> Any:
        app = flask.Flask("shop")
        app.config.update(GLIDEMQ_URL=url, GLIDEMQ_PREFIX=prefix)
        own.init_app(app)
        app.post("/welcome/<name>")(lambda name: {"job": welcome.blocking.add(name).id})
        return app

    for prefix in ("one", "two"):
        app = application(prefix)
        with app.test_client() as client:
            assert client.post("/welcome/ada").json == {"job": "1"}
        with pytest.raises(GlideMQError, match="options cannot be changed"):
            own.init_app(app)
        with app.app_context():
            job = own.queue(queue_name).get_job("1")
            assert job is not None
            assert (job.data, job.opts["attempts"]) == ({"name": "ada"}, 4)
            own.queue(queue_name).obliterate(force=True)
        own.close(app)
