"""Test that a build refuses queues whose `features` it does not know, before anything is written."""

import itertools
import re
import shutil
from collections.abc import Iterator

import pytest

from glidemq_py.testing import RespError
from tests.inside import Library, Variant, assemble, lua_root
from tests.lua.own_support import OwnQueue, library
from tests.wire_library import support as wire_support

FEATURE = "telepathy:9.9"
USE = f"""-- use_it: use the feature of the test.   KEYS 1 meta   -> 1
G.export('use_it', {{}}, function(keys)
  G.use_feature(G.queue(keys[1]), '{FEATURE}')
  return 1
end)
"""


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """Return the library of a later build, which knows one more feature."""
    root = tmp_path_factory.mktemp("newer") / "lua"
    shutil.copytree(lua_root(), root)
    declared = root / "core" / "known_features.lua"
    text = declared.read_text(encoding="utf-8")
    assert text.count("G.KNOWN_FEATURES = { ") == 1
    declared.write_text(text.replace("G.KNOWN_FEATURES = { ", f"G.KNOWN_FEATURES = {{ ['{FEATURE}'] = true, "))
    (root / "features" / "telepathy" / "functions").mkdir(parents=True)
    (root / "features" / "telepathy" / "functions" / "telepathy.lua").write_text(USE)
    return assemble(settable_clock=True, root=root)


class NewerQueue(OwnQueue):
    """The queue as the later build calls it."""

    def __init__(self, q: OwnQueue, newer: Library):
        self.resp, self.base, self.meta, self.now, self.newer = q.resp, q.base, q.meta, q.now, newer
        if newer.name not in str(self.resp.execute("FUNCTION", "LIST", "LIBRARYNAME", newer.name)):
            self.resp.execute_everywhere("FUNCTION", "LOAD", newer.code)

    def fcall(self, function: str, key: str, *args: str | bytes) -> object:
        return self.resp.execute("FCALL", self.newer.function(function), 1, key, *args)


@pytest.fixture
def later(q: OwnQueue, newer: Library) -> Iterator[NewerQueue]:
    """Return the queue as the later build calls it; its own library is deleted afterwards."""
    yield NewerQueue(q, newer)
    q.resp.execute_everywhere("FUNCTION", "DELETE", newer.name)


def dump(q: OwnQueue) -> dict[str, object]:
    """Return every key of the queue with its content."""
    content: dict[str, object] = {}
    for name in q.key_names():
        kind = q.redis("TYPE", name)
        command, *rest = {
            "hash": ["HGETALL"], "string": ["GET"], "set": ["SMEMBERS"], "list": ["LRANGE", "0", "-1"],
            "zset": ["ZRANGE", "0", "-1", "WITHSCORES"], "stream": ["XRANGE", "-", "+"],
        }[kind]  # fmt: skip
        content[name] = q.redis(command, name, *rest)
    return content


def refused(q: OwnQueue) -> str:
    return re.escape(f"unknown feature {FEATURE} of queue {q.base}")


def test_plain_queue_lists_no_feature(q: OwnQueue):
    q.add_job()
    q.add_job(ordering=["k", 1, 0, 0, 0, 0, 0])
    q.finish(*[job.completed() for job in q.fetch(2)])
    q.add_job(priority=3)
    assert q.redis("HGET", "meta", "features") is None
    q.take_one()  # older builds keep a key of another type in a place that this job needs
    assert q.redis("HGET", "meta", "features") == "list-ids:0.2.0"


def test_every_function_refuses_a_queue_with_an_unknown_feature(q: OwnQueue, later: NewerQueue):
    q.add_job()
    job = q.take_one()
    assert later.fcall("use_it", q.meta) == 1
    assert later.fcall("use_it", q.meta) == 1
    assert q.redis("HGET", "meta", "features") == FEATURE
    before = dump(q)
    for name in sorted(library().functions):
        # The arguments do not matter: the queue is checked before they are read.
        with pytest.raises(RespError, match=refused(q)):
            q.fcall(name, q.meta)
    for name, key in itertools.product(("lock", "unlock", "renew"), ("lock:any", "schedulers:lock:__tick__")):
        with pytest.raises(RespError, match=refused(q)):
            q.fcall(name, q.key(key), "token", "1000")
    assert dump(q) == before
    assert later.finish(job.completed()) == [0]
    assert later.add_job() == "2"


def test_known_and_unknown_features_together(q: OwnQueue, later: NewerQueue):
    for listed, unknown in (
        (f"{FEATURE},groups:10.0", "groups:10.0"), ("groups:10.0", "groups:10.0"), ("groups", "groups"),
        ("telepathy:9.8", "telepathy:9.8"), (",,x:1", "x:1"),
    ):  # fmt: skip
        q.redis("HSET", "meta", "features", listed)
        with pytest.raises(RespError, match=re.escape(f"unknown feature {unknown} of queue")):
            later.fcall("pause", q.meta)
    for listed in ("", FEATURE, f"{FEATURE},{FEATURE}"):
        q.redis("HSET", "meta", "features", listed)
        later.fcall("pause", q.meta)


def test_version_and_keys_without_a_queue_are_not_checked(q: OwnQueue, later: NewerQueue):
    later.fcall("use_it", q.meta)
    assert q.resp.execute("FCALL", library().function("version"), 0) == library().name
    assert q.resp.execute("FCALL", library().function("lock"), 1, "test-of-features:lock", "a", "1000") == 1
    q.resp.execute("UNLINK", "test-of-features:lock")


def test_obliterate_ends_the_use_of_a_feature(q: OwnQueue, later: NewerQueue):
    q.add_job()
    later.fcall("use_it", q.meta)
    assert later.obliterate() == [("more", 1), ("done", 0)]
    assert q.key_names() == set()
    assert q.add_job() == "1"


def test_foreign_meta_key_is_left_to_the_functions(q: OwnQueue):
    q.redis("SET", "meta", "foreign")
    assert q.add_job() == "1"
    with pytest.raises(RespError, match="WRONGTYPE"):
        q.take_one()


def test_wire_library_refuses_too(q: OwnQueue):
    wire_support.load(q.resp)
    q.add_job()
    q.redis("HSET", "meta", "features", FEATURE)
    before = dump(q)
    for name in sorted(assemble(Variant.WIRE).functions - {"version"}):
        for suffix in ("stream", "job:1", "meta"):
            with pytest.raises(RespError, match=refused(q)):
                q.resp.execute("FCALL", f"glidemq_{name}", 1, q.key(suffix))
    if "-cluster-" not in q.base:  # the second queue of a call counts too
        with pytest.raises(RespError, match=refused(q)):
            q.resp.execute("FCALL", "glidemq_addFlow", 2, "glide:{another}:id", q.key("id"))
    assert q.resp.execute("FCALL", "glidemq_version", 1, q.key("id")) == "93"
    assert dump(q) == before
