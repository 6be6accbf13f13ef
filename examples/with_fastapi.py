"""FastAPI: queues and a worker that open and close with the application, and endpoints that add jobs.

In production, `uvicorn with_fastapi:app`. Here the requests are sent to the application in this process.
"""

import asyncio
from typing import Annotated, Any

import httpx
from fastapi import Depends, FastAPI, HTTPException

from glidemq_py import Job, Queue, Worker
from glidemq_py.integrations.fastapi import AppQueues


async def make_report(job: Job) -> str:
    return f"report of {job.data['year']}"


queues = AppQueues([Queue("reports")], workers=[Worker("reports", make_report, concurrency=5)])
app = FastAPI(lifespan=queues.lifespan)
Reports = Annotated[Queue, Depends(queues.get("reports"))]


@app.post("/reports/{year}", status_code=202)
async def add_report(year: int, reports: Reports) -> dict[str, str]:
    """Add the job and return its id at once."""
    job = await reports.add("report", {"year": year}, attempts=3, backoff=1_000)
    return {"job": job.id}


@app.get("/reports/{job_id}")
async def get_report(job_id: str, reports: Reports, wait: float = 0) -> dict[str, Any]:
    """Return the state and the result, after at most ``wait`` seconds."""
    job = await reports.get_job(job_id)
    if job is None:
        raise HTTPException(404, "no such report")
    if wait:
        await job.wait_until_finished(timeout=int(wait * 1_000))
        await job.reload()
    return {"state": job.state, "result": job.returnvalue}


async def main() -> None:
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://app") as web:
        for method, path in (("POST", "/reports/2025"), ("GET", "/reports/1?wait=30"), ("GET", "/reports/999")):
            answer = await web.request(method, path)
            print(method, path, "->", answer.status_code, answer.json())


if __name__ == "__main__":
    asyncio.run(main())
