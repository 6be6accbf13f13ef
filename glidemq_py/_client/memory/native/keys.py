"""Native commands of keys of any type, and of strings."""

from __future__ import annotations

from typing import Any

from glidemq_py._client.memory.native.arguments import MAX_INT, OK, Status, UnusualError, as_argument, integer
from glidemq_py._client.memory.native.keyspace import KeyType

__all__ = ["Keys"]


class Keys(KeyType):
    """Commands of keys of any type, and of strings."""

    names = ("decr", "del", "exists", "expire", "get", "incr", "incrby", "pexpire", "publish", "set", "time",
             "unlink")  # fmt: skip

    def _time(self) -> list[bytes]:
        micros = round(self._database.time * 1_000_000)
        return [b"%d" % (micros // 1_000_000), b"%d" % (micros % 1_000_000)]

    def _exists(self, first: bytes, *others: bytes) -> int:
        count = 0
        for key in (first, *others):
            if self._live(key) is not None:
                count += 1
        return count

    def _del(self, first: bytes, *others: bytes) -> int:
        keys = (first, *others)
        if not all(type(key) is bytes for key in keys):
            raise UnusualError
        count, data = 0, self._database._dict
        for key in keys:
            if self._live(key) is not None:
                del data[key]
                self._touched(key)
                count += 1
        return count

    _unlink = _del

    def _publish(self, channel: bytes, _message: bytes) -> int:
        return sum([listen(channel) for listen in tuple(self._listeners)])

    def _pexpire(self, key: bytes, milliseconds: Any) -> int:
        return self._expire_in(key, integer(milliseconds) / 1000)

    def _expire(self, key: bytes, seconds: Any) -> int:
        return self._expire_in(key, integer(seconds))

    def _expire_in(self, key: bytes, seconds: float) -> int:
        if not -1e12 < seconds < 1e12:
            raise UnusualError
        if seconds <= 0:
            return self._del(key)
        item = self._live(key)
        if item is None:
            return 0
        item.expireat = self._database.time + seconds
        self._database.schedule_expiry(key, item.expireat)
        return 1

    def _get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._find(key, bytes)
        return value

    def _set(self, key: bytes, value: Any, *options: Any) -> Status | bytes | None:
        text, life, new, before = as_argument(value), None, False, None
        if has_get := options[-1:] == (b"GET",):
            before, options = self._get(key), options[:-1]
        if options[:1] == (b"NX",):
            new, options = True, options[1:]
        if options[:1] == (b"PX",):
            life, options = integer(options[1]), options[2:]
        if options or (life is not None and not 0 < life < 10**15):
            raise UnusualError
        if new and self._live(key) is not None:
            return None
        item = self._store(key, text)
        if life is not None:
            item.expireat = self._database.time + life / 1000.0
            self._database.schedule_expiry(key, item.expireat)
        return before if has_get else OK

    def _incrby(self, key: bytes, by: Any) -> int:
        amount = integer(by)
        item = self._live(key)
        if item is None:
            self._store(key, b"%d" % amount)
            return amount
        if type(item.value) is not bytes:
            raise UnusualError
        number = integer(item.value) + amount
        if not -MAX_INT <= number <= MAX_INT:
            raise UnusualError
        item.value = b"%d" % number
        return number

    def _incr(self, key: bytes) -> int:
        return self._incrby(key, 1)

    def _decr(self, key: bytes) -> int:
        return self._incrby(key, -1)
