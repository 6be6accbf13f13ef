"""Flask: views add jobs, and handlers of a worker use the application's context."""

import asyncio

from flask import Flask, current_app

from glidemq_py import Job, Worker
from glidemq_py.integrations.flask import AppContextMiddleware, GlideMQ

mq = GlideMQ()


def create_app() -> Flask:
    """Create the application, for the web server and for the worker."""
    app = Flask("shop")
    app.config["SENDER"] = "shop@example.org"
    # None: GLIDEMQ_URL, or here a private server.
    app.config["GLIDEMQ_URL"] = None
    app.config["GLIDEMQ_QUEUES"] = {"emails": {"default_job_options": {"attempts": 5, "backoff": 1_000}}}
    mq.init_app(app)

    @app.post("/welcome/<name>")
    def welcome(name: str) -> tuple[dict[str, str], int]:
        job = mq.queue("emails").add("welcome", {"to": name})
        return {"job": job.id}, 202

    return app


def send(job: Job) -> None:
    # A plain function runs in a thread, within the application's context.
    print(f"{current_app.config['SENDER']} writes to {job.data['to']}, job {job.id}")


# In production, `glidemq worker with_flask:worker`.
app = create_app()
worker = Worker("emails", send, middleware=[AppContextMiddleware(app)])


async def run_jobs() -> None:
    async with worker:
        await worker.drain()


def main() -> None:
    with app.test_client() as client:
        for name in ("ada", "bob"):
            answer = client.post(f"/welcome/{name}")
            print(answer.status_code, answer.json)
    asyncio.run(run_jobs())
    mq.close(app)


if __name__ == "__main__":
    main()
