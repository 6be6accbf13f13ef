"""What mypy and pyright see of durable steps. Both check this file; pytest runs it."""

from dataclasses import dataclass
from functools import partial
from typing import assert_type

from glidemq_py import Job, Worker
from glidemq_py.errors import SignalTimeout

worker = Worker("typed-steps")


@dataclass
class Charge:
    id: str


async def charge_card(customer: int, cents: int) -> Charge:
    return Charge(f"{customer} {cents}")


def refund(charge: str) -> int:
    return len(charge)


@worker.task
async def render(page: int) -> str:
    return str(page)


@worker.task
def mail(charge: str, pages: list[str]) -> bool:
    return bool(charge and pages)


@worker.task(attempts=5)
async def order(job: Job, /, customer: int, cents: int) -> bool:
    charge = await job.run("charge", charge_card, customer, cents, attempts=3)
    assert_type(charge, Charge)
    await job.sleep("cooling off", 10)
    try:
        decision = await job.wait_for_signal("approval", timeout=10)
    except SignalTimeout:
        assert_type(await job.run("refund", refund, charge.id), int)
        return False
    pages = await job.gather([render.call(page) for page in decision.data])
    assert_type(pages, list[str])
    mixed: list[str | bool] = await job.gather([render.call(1), mail.call("x", [])])
    assert mixed
    assert_type(await job.run("again", partial(charge_card, customer, cents=cents)), Charge)
    return await job.run("mail", mail, charge.id, pages)


def plain(job: Job) -> int:
    assert_type(job.blocking.run("charge", charge_card, 1, 2), Charge)
    return job.blocking.run("refund", refund, "x")


async def wrong(job: Job) -> None:
    await job.run("refund", refund, 1)  # type: ignore[arg-type] # pyright: ignore[reportCallIssue, reportArgumentType]
    await job.run("charge", charge_card, 1)  # type: ignore[arg-type] # pyright: ignore[reportCallIssue, reportArgumentType]
    render.call("x")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    await job.gather([1])  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def test_steps_are_typed() -> None:
    assert render.call(1).data == {"page": 1}
