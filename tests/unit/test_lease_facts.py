"""Tests of the facts that identify a lease."""

from glidemq_py._core.calls.working import COMPLETED, COMPLETED_PLAIN
from glidemq_py._core.payload import JSON_SERIALIZER
from glidemq_py._features.leases.exchanging import completed_row
from glidemq_py._features.leases.tokens import LeaseFacts, PlainFacts, decode_token, encode_token

FACTS = ("17", "1-0", 1, 5, 0, 0)


def test_plain_facts_are_reported_as_a_plain_job() -> None:
    facts = PlainFacts(*FACTS)._replace(keep=1)
    assert completed_row(JSON_SERIALIZER, facts, None).kind == COMPLETED_PLAIN
    assert completed_row(JSON_SERIALIZER, LeaseFacts(*FACTS), None).kind == COMPLETED


def test_token_does_not_contain_whether_the_job_is_plain() -> None:
    token = encode_token("glide", "q", PlainFacts(*FACTS))
    assert token == encode_token("glide", "q", LeaseFacts(*FACTS))
    facts = decode_token("glide", "q", token)
    assert [*facts] == [*FACTS]
    assert completed_row(JSON_SERIALIZER, facts, None).kind == COMPLETED
