"""Broadcast: messages for every subscription; one filters, one retries, one joins late."""

import asyncio

from glidemq_py import Broadcast, BroadcastWorker, Message


async def main() -> None:
    done: asyncio.Queue[str] = asyncio.Queue()

    async def index(message: Message) -> None:
        if message.attempts_made == 0 and message.subject == "orders.eu.paid":
            raise ConnectionError("the search index is away")
        await done.put(f"index: {message.subject}, attempt {message.attempts_made + 1}")

    async def mail(message: Message) -> None:
        await done.put(f"mail: {message.subject}")

    async def report(message: Message) -> None:
        await done.put(f"report: {message.subject}")

    async with Broadcast("shop", max_messages=1_000) as shop:
        indexer = BroadcastWorker("shop", index, subscription="index")
        mailer = BroadcastWorker("shop", mail, subscription="mail", subjects=["orders.*.created"])
        async with indexer, mailer:
            await shop.publish("orders.eu.created", {"order": 7}, attempts=3, backoff=50)
            await shop.publish("orders.eu.paid", {"order": 7}, attempts=3, backoff=50)
            print(*sorted([await done.get() for _ in range(3)]), sep="\n")

        async with BroadcastWorker("shop", report, subscription="report", start_from="0-0"):
            print(*[await done.get() for _ in range(2)], sep="\n")

        for subscription in sorted(await shop.get_subscriptions(), key=lambda each: each.name):
            print(f"{subscription.name}: {subscription.waiting} waiting, {subscription.active} active")


if __name__ == "__main__":
    asyncio.run(main())
