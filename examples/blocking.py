"""Blocking API: add jobs and wait for results without an event loop, with many threads on one queue."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from glidemq_py import Job, Worker, sync


def total(job: Job[list[int], int]) -> int:
    return sum(job.data)


def work(stop: threading.Event) -> None:
    """Run a worker in a thread; usually it is a separate process (python -m glidemq_py.worker)."""

    async def main() -> None:
        async with Worker("sums", total):
            await asyncio.to_thread(stop.wait)

    asyncio.run(main())


def main() -> None:
    with sync.Queue("sums") as queue:
        job = queue.add("sum", [1, 2, 3])
        print(f"added {job.id}, which is {job.get_state()}")

        stop = threading.Event()
        worker = threading.Thread(target=work, args=(stop,))
        worker.start()
        print("sum of 0..9:", queue.add_and_wait("sum", list(range(10))))
        stop.set()
        worker.join()

        with ThreadPoolExecutor(5) as threads:
            ids = list(threads.map(lambda n: queue.add("sum", [n]).id, range(500)))
        print(f"5 threads added {len(set(ids))}")
        print(f"{queue.get_job_counts().waiting} waiting")


if __name__ == "__main__":
    main()
