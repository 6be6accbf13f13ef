"""Addresses, signatures and slots of the gateway's webhooks."""

from contextlib import AbstractContextManager, suppress

import pytest

from glidemq_py.gateway.webhooks import SLOTS, DeliverySlots, WebhookError


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def start(slots: DeliverySlots, webhook: str, most: int = SLOTS) -> list[AbstractContextManager[None]]:
    """Start as many deliveries as there may be."""
    started: list[AbstractContextManager[None]] = []
    while len(started) < most and slots.delay(webhook) is None:
        started.append(slots.taken(webhook))
        started[-1].__enter__()
    return started


def end(started: list[AbstractContextManager[None]], *, is_ok: bool) -> None:
    error = None if is_ok else WebhookError("it did not answer")
    for each in started:
        with suppress(WebhookError):
            each.__exit__(None if error is None else WebhookError, error, None)


def test_share_of_a_receiver_follows_from_its_answers() -> None:
    clock = Clock()
    slots = DeliverySlots(1.0, clock)
    started = start(slots, "a")
    assert len(started) == 20
    clock.now += 0.1
    end(started, is_ok=True)
    started = start(slots, "a")
    assert len(started) == 40
    clock.now += 0.1
    end(started, is_ok=False)
    started = start(slots, "a")
    assert (len(started), slots.is_dead("a")) == (40, False)
    clock.now += 3
    end(started, is_ok=True)
    started = start(slots, "a")
    assert (len(started), slots.is_dead("a")) == (10, False)
    clock.now += 10
    end(started, is_ok=False)
    started = start(slots, "a")
    assert (len(started), slots.is_dead("a")) == (1, True)
    clock.now += 0.1
    end(started, is_ok=True)
    assert (len(start(slots, "a")), slots.is_dead("a")) == (2, False)


def test_receiver_that_answers_again_slowly_gets_the_share_of_slow_ones() -> None:
    clock = Clock()
    slots = DeliverySlots(1.0, clock)
    started = start(slots, "a")
    clock.now += 10
    end(started, is_ok=False)
    shares: list[int] = []
    for _ in range(7):
        started = start(slots, "a")
        shares.append(len(started))
        clock.now += 3
        end(started, is_ok=True)
    assert shares == [1, 2, 4, 8, 10, 10, 10]


def test_slow_receivers_leave_half_of_the_slots() -> None:
    clock = Clock()
    slots = DeliverySlots(1.0, clock)
    names = [str(number) for number in range(70)]
    for name in names:
        started = start(slots, name)
        clock.now += 10
        end(started, is_ok=False)
    running = [each for name in names for each in start(slots, name)]
    assert len(running) == 50
    assert len(start(slots, "other")) == 20


def test_messages_beyond_the_share_are_spread_over_the_time_of_the_deliveries() -> None:
    clock = Clock()
    slots = DeliverySlots(1.0, clock)
    for _ in range(20):
        started = start(slots, "a")
        clock.now += 10
        end(started, is_ok=False)
    running = start(slots, "a")
    delays = [slots.delay("a") for _ in range(100)]
    assert [each for each in delays[:3] if each is not None] == pytest.approx([20, 30, 40], rel=0.1)
    assert all(each is not None and each <= 120 for each in delays)
    slots.forget([])
    assert slots.delay("a") is not None, "it has a running delivery"
    end(running, is_ok=False)
    slots.forget([])
    assert slots.delay("a") is None
