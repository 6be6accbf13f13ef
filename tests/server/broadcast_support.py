"""A broadcast with subscriptions that have read different messages, and with dead letters of two of them."""

import asyncio

from glidemq_py import Broadcast, BroadcastWorker, Message

__all__ = ["SUBJECT", "fill"]

SUBJECT = "orders.created"


async def fill(url: str, name: str, messages: int = 3, *, prefix: str = "glide", evil: str = ""):
    """Publish messages. `mailer` reads them, in `audit` and `invoices` number 1 fails, `search` reads none.

    Args:
        url: The server.
        name: Name of the broadcast.
        messages: How many.
        prefix: First part of every key.
        evil: A text that messages, errors and names of subscriptions contain.
    """
    ended = asyncio.Semaphore(0)

    async def read(_: Message):
        pass

    async def fail(message: Message):
        if message.data["order"] == 1:
            raise ConnectionError(f"tax office is closed{evil}")

    async with Broadcast(name, url, prefix=prefix) as broadcast:
        await broadcast.subscribe(f"search{evil}", start_from="0-0")
        handlers = {"mailer": read, "audit": fail, "invoices": fail}
        workers = [
            BroadcastWorker(
                name, handler, url, prefix=prefix, subscription=subscription, start_from="0-0", log_failures=False,
                dead_letter_queue=None if subscription == "mailer" else f"{name}-{subscription}-dead",
            )
            for subscription, handler in handlers.items()
        ]  # fmt: skip
        for worker in workers:
            for event in ("completed", "failed"):
                worker.on(event, lambda *_: ended.release())
        async with workers[0], workers[1], workers[2], asyncio.timeout(30):
            for n in range(messages):
                await broadcast.publish(f"{SUBJECT}{evil}", {"order": n, "password": "hunter2"})
            for _ in range(3 * messages):
                await ended.acquire()
