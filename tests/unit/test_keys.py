"""Key names of the data model (docs/reference/data-model.md), and the rules on names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glidemq_py.errors import GlideMQValidationError
from tests.inside import QueueKeys, flow_key, split_member, usage_registry_key, validate_prefix, validate_queue_name

KEYS = QueueKeys("glide", "emails")

STATIC = {
    "meta": "meta",
    "id": "id",
    "stream": "stream",
    "scheduled": "scheduled",
    "completed": "completed",
    "failed": "failed",
    "events": "events",
    "priority": "priority",
    "lifo": "lifo",
    "list_active": "list-active",
    "dedup": "dedup",
    "rate": "rate",
    "schedulers": "schedulers",
    "ordering": "ordering",
    "ratelimited": "ratelimited",
    "suspended": "suspended",
    "scheduler_lock": "schedulers:lock:__tick__",
    "sweep_lock": "suspended:lock:__sweep__",
    "wake": "wake",
    "wake_channels": "wake-channels",
}


@pytest.mark.parametrize(("attribute", "suffix"), STATIC.items())
def test_static_keys(attribute, suffix):
    assert getattr(KEYS, attribute) == "glide:{emails}:" + suffix
    assert getattr(KEYS, attribute) in KEYS.static


def test_static_is_complete_and_without_repeats():
    assert len(set(KEYS.static)) == len(KEYS.static) == len(STATIC) + 2  # and the two metrics hashes


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (KEYS.base, "glide:{emails}"),
        (KEYS.stem, "glide:{emails}:"),
        (KEYS.job("7"), "glide:{emails}:job:7"),
        (KEYS.subscription("7", "g"), "glide:{emails}:job:7:sub:g"),
        (KEYS.log("7"), "glide:{emails}:log:7"),
        (KEYS.deps("7"), "glide:{emails}:deps:7"),
        (KEYS.parents("7"), "glide:{emails}:parents:7"),
        (KEYS.jstream("7"), "glide:{emails}:jstream:7"),
        (KEYS.signals("7"), "glide:{emails}:signals:7"),
        (KEYS.member("7"), "glide:{emails}:7"),
        (KEYS.worker("worker-1-ab"), "glide:{emails}:w:worker-1-ab"),
        (KEYS.metrics("completed"), "glide:{emails}:metrics:completed"),
        (KEYS.metrics("failed"), "glide:{emails}:metrics:failed"),
        (KEYS.group("k"), "glide:{emails}:group:k"),
        (KEYS.group_queue("k"), "glide:{emails}:groupq:k"),
        (KEYS.budget("f"), "glide:{emails}:budget:f"),
        (KEYS.tokens(12), "glide:{emails}:tpm:12"),
        (KEYS.usage(60_000), "glide:{emails}:usage:60000"),
        (usage_registry_key("glide"), "glide:usage:queues"),
        (flow_key("glide", "f", "meta"), "glide:{flow:f}:meta"),
        (flow_key("glide", "f", "jobs"), "glide:{flow:f}:jobs"),
    ],
)
def test_foreign_keys(key, expected):
    assert key == expected


def test_our_keys_do_not_match_patterns_of_peers():
    assert not KEYS.wake.startswith(tuple(KEYS.stem + scanned for scanned in ("job:", "w:", "group:")))


def test_equality_is_of_the_queue():
    assert QueueKeys("glide", "a") == QueueKeys("glide", "a")
    assert len({QueueKeys("glide", "a"), QueueKeys("glide", "a"), QueueKeys("other", "a")}) == 2
    assert repr(KEYS) == "QueueKeys('glide', 'emails')"


@pytest.mark.parametrize("name", ["a", "emails", "a b", "a.b-c_d/e", "日本語", "x" * 256, "ß"])
def test_good_queue_names(name):
    assert validate_queue_name(name) == name


BAD_CHARACTERS = ["{", "}", "*", "?", "[", "]", "\\", "\n", "\x00", "\x7f", "\ud800"]


@pytest.mark.parametrize(
    "name", ["", "x" * 257, "😀" * 129, 7, None, b"q", *(f"a{bad}b" for bad in [":", *BAD_CHARACTERS])]
)
def test_bad_queue_names(name):
    with pytest.raises(GlideMQValidationError, match="option 'name'"):
        validate_queue_name(name)


@pytest.mark.parametrize("prefix", ["", "x" * 257, 7, None, *(f"a{bad}b" for bad in BAD_CHARACTERS)])
def test_bad_prefixes(prefix):
    with pytest.raises(GlideMQValidationError, match="option 'prefix'"):
        validate_prefix(prefix)


def test_prefix_can_contain_colons():
    assert QueueKeys("app:eu", "q").meta == "app:eu:{q}:meta"


names = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="{}:*?[]\\"), min_size=1, max_size=100
)
prefixes = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="{}*?[]\\"), min_size=1, max_size=100
)


@given(prefixes, names, names)
def test_every_key_carries_the_queue_as_hash_tag(prefix, name, job_id):
    keys = QueueKeys(prefix, name)
    for key in (*keys.static, keys.job(job_id), *keys.satellites(job_id), keys.worker("w")):
        assert key[key.index("{") + 1 : key.index("}")] == name


@given(prefixes, names, names)
def test_members_are_split_where_they_were_joined(prefix, name, job_id):
    keys = QueueKeys(prefix, name)
    assert split_member(keys.member(job_id)) == (keys.base, job_id)


@pytest.mark.parametrize("member", ["", "7", "emails:7", "glide:{emails}:", "glide:{emails}", "{emails}:7"])
def test_invalid_member_is_rejected(member):
    with pytest.raises(ValueError, match="must be such as"):
        split_member(member)
