"""HTTP proxy: call the proxy application in process, without a network."""

import asyncio

import httpx

from glidemq_py import Job, Worker
from glidemq_py.proxy import create_proxy_app

TOKEN = "a-token-of-16-or-more"


async def shout(job: Job[str, str]) -> str:
    return job.data.upper()


async def main() -> None:
    app = create_proxy_app(queues=["words"], tokens=[TOKEN])
    headers = {"Authorization": f"Bearer {TOKEN}"}
    transport = httpx.ASGITransport(app)  # in production: python -m glidemq_py.proxy
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://localhost/queues/words", headers=headers) as http,
        Worker("words", shout),
    ):
        made = await http.post("/jobs", json={"name": "shout", "data": "hi", "opts": {"attempts": 3}})
        print(made.status_code, made.json())
        found = await http.post("/jobs/wait", json={"name": "shout", "data": "hello"})
        print(found.status_code, found.json())
        print((await http.get("/counts", headers={"Authorization": "Bearer wrong"})).status_code)
        async with http.stream("GET", "/jobs/1/events") as events:
            async for line in events.aiter_lines():
                if line.startswith("event: completed"):
                    print("completed 1")
    await app.state.proxy.close()


if __name__ == "__main__":
    asyncio.run(main())
