"""Dashboard: mount it in an application that decides who sees and changes which queues."""

import asyncio

import httpx
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Mount

from glidemq_py import Queue
from glidemq_py.dashboard import Access, Dashboard
from glidemq_py.testing import ServerProcess, server_binary

STAFF = {"Bearer alice": Access(user="alice"), "Bearer bob": Access(user="bob", queues=["emails"], actions=[])}


def authorize(request: HTTPConnection) -> Access | None:
    return STAFF.get(request.headers.get("authorization", ""))


async def main() -> None:
    with ServerProcess(server_binary("valkey-9.1")) as server:
        url = f"{server.url}?allow_no_aof=true"
        dashboard = Dashboard(url, authorize=authorize, allow_changes=True)
        app = Starlette(routes=[Mount("/queues", dashboard)])  # in production: served by uvicorn
        transport = httpx.ASGITransport(app)
        async with (
            dashboard,
            Queue("emails", url) as emails,
            Queue("salaries", url) as salaries,
            httpx.AsyncClient(transport=transport, base_url="https://app.example") as http,
        ):
            await emails.add("welcome", {"to": "a@example.org"})
            await salaries.add("pay", {"amount": 5_000})
            print("stranger:", (await http.get("/queues/")).status_code)
            for user in ("alice", "bob"):
                headers = {"Authorization": f"Bearer {user}", "Origin": "https://app.example"}
                page = (await http.get("/queues/", headers=headers)).text
                print(f"{user} sees:", [name for name in ("emails", "salaries") if f">{name}<" in page])
                form = {"change": "pause", "q": "emails"}
                status = (await http.post("/queues/change", headers=headers, data=form)).status_code
                print(f"{user} pauses emails:", "done" if status == 303 else status)
            print("paused:", await emails.is_paused())


if __name__ == "__main__":
    asyncio.run(main())
