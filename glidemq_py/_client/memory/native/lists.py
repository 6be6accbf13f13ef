"""Native commands of lists and sets."""

from __future__ import annotations

from typing import Any

from glidemq_py._client.memory.native.arguments import UnusualError, as_argument, as_arguments, integer
from glidemq_py._client.memory.native.keyspace import KeyType

__all__ = ["Lists"]


class Lists(KeyType):
    """Commands of lists, and of sets without expiring members."""

    names = ("llen", "lrange", "rpop", "rpush", "scard", "sismember", "sscan")
    _sscan = KeyType._scan

    def _llen(self, key: bytes) -> int:
        found = self._find(key, list)
        return 0 if found is None else len(found)

    def _rpush(self, key: bytes, first: Any, *others: Any) -> int:
        values = as_arguments((first, *others))
        found: list[bytes] | None = self._find(key, list)
        if found is None:
            self._store(key, values)
            return len(values)
        found += values
        return len(found)

    def _rpop(self, key: bytes, count: Any = None) -> Any:
        number = None if count is None else integer(count)
        if number is not None and number <= 0:
            raise UnusualError
        found: list[bytes] | None = self._find(key, list)
        if found is None:
            return None
        if number is None:
            reply: Any = found.pop()
        else:
            reply = found[: -number - 1 : -1]
            del found[-number:]
        if not found:
            del self._database._dict[key]
        return reply

    def _lrange(self, key: bytes, start: Any, stop: Any) -> list[bytes]:
        first, last = integer(start), integer(stop)
        found: list[bytes] | None = self._find(key, list)
        if found is None:
            return []
        first = max(0, first + len(found)) if first < 0 else first
        last = last + len(found) if last < 0 else last
        return found[first : last + 1] if last >= 0 else []

    def _members(self, key: bytes) -> Any:
        found = self._find(key, self._members_type)
        if found is not None and found._may_expire:
            raise UnusualError
        return found

    def _scard(self, key: bytes) -> int:
        found = self._members(key)
        return 0 if found is None else len(found._values)

    def _sismember(self, key: bytes, member: Any) -> int:
        found = self._members(key)
        return int(found is not None and as_argument(member) in found._values)
