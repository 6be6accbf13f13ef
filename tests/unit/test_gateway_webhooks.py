"""Addresses, signatures and slots of the gateway's webhooks."""

from contextlib import AbstractContextManager, suppress
from ipaddress import ip_address

import pytest

from glidemq_py.errors import GlideMQValidationError
from glidemq_py.gateway.options import GatewayOptions
from glidemq_py.gateway.table import CommandError
from glidemq_py.gateway.webhooks.addresses import check_url, parse_networks, problem_of, target_of
from glidemq_py.gateway.webhooks.posting import WebhookError
from glidemq_py.gateway.webhooks.signing import headers_of
from glidemq_py.gateway.webhooks.slots import SLOTS, DeliverySlots


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("127.0.0.1", "localhost"), ("127.9.9.9", "localhost"), ("0.0.0.0", "localhost"), ("::1", "localhost"),
        ("::", "localhost"), ("::ffff:127.0.0.1", "localhost"), ("64:ff9b::7f00:1", "localhost"),
        ("2002:7f00:1::1", "localhost"), ("10.1.2.3", "private IP"), ("172.16.0.1", "private IP"),
        ("192.168.1.1", "private IP"), ("fc00::1", "private IP"), ("fec0::1", "private IP"),
        ("0.1.2.3", "private IP"), ("64:ff9b::a00:1", "private IP"), ("2002:a00:1::", "private IP"),
        ("100.64.0.1", "reserved IP"), ("240.0.0.1", "private IP"), ("255.255.255.255", "private IP"),
        ("169.254.1.1", "link-local IP"), ("fe80::1", "link-local IP"), ("fe80::1%lo", "link-local IP"),
        ("224.0.0.1", "multicast IP"), ("239.1.1.1", "multicast IP"), ("ff0e::1", "multicast IP"),
        ("169.254.169.254", "cloud metadata endpoints"), ("100.100.100.200", "cloud metadata endpoints"),
        ("168.63.129.16", "cloud metadata endpoints"), ("fd00:ec2::254", "cloud metadata endpoints"),
        ("::ffff:169.254.169.254", "cloud metadata endpoints"), ("198.18.0.1", "private IP"),
        ("93.184.215.14", None), ("2606:2800:21f::1", None), ("64:ff9b::5db8:d70e", None),
    ],
)  # fmt: skip
def test_addresses(address: str, problem: str | None) -> None:
    assert problem_of(ip_address(address), ()) == problem


def test_networks_that_are_allowed() -> None:
    allowed = GatewayOptions(webhook_networks=["10.0.0.0/8", "fd00::/8"]).webhook_networks
    assert problem_of(ip_address("10.1.2.3"), allowed) is None
    assert problem_of(ip_address("::ffff:10.1.2.3"), allowed) is None
    assert problem_of(ip_address("64:ff9b::a00:1"), allowed) is None
    assert problem_of(ip_address("fd00:ec2::254"), allowed) is None
    assert problem_of(ip_address("11.1.2.3"), allowed) is None
    assert problem_of(ip_address("192.168.0.1"), allowed) == "private IP"
    for given in ("10.0.0.0/8", ["10.0.0.1/8"], ["x"], 5):
        with pytest.raises(GlideMQValidationError, match="webhook_networks"):
            GatewayOptions(webhook_networks=given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "0x7f.1", "2130706433", "017700000001", "127.1", "localhost", "localhost.", "a.localhost", "[::1]"],
)
def test_unusual_names_of_this_machine(host: str) -> None:
    with pytest.raises(CommandError, match="cannot point to localhost"):
        check_url(f"http://{host}:8080/", ())
    check_url(f"http://{host}:8080/", parse_networks("x", ["127.0.0.0/8", "::1/128"]))


def test_parts_of_a_url() -> None:
    assert target_of("https://example.com") == (True, "example.com", 443, "example.com", "/")
    assert target_of("http://[2001:db8::1]:81/a%20b?c#d") == (
        False, "2001:db8::1", 81, "[2001:db8::1]:81", "/a%20b?c",
    )  # fmt: skip


def test_signature_of_standard_webhooks() -> None:
    """The example of the specification's reference libraries."""
    headers = headers_of(
        "msg_p5jXN8AQM9LWM0D4loKWxJek", "test", 1, 1_614_265_330, b'{"test": 2432232314}',
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    )  # fmt: skip
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert "webhook-signature" not in headers_of("m", "test", 1, 1, b"", None)
    assert headers_of("m", "e", 1, 2, b"x", "plain")["webhook-signature"].startswith("v1,")


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
