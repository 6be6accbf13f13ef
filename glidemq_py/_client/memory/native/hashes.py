"""Native commands of hashes."""

from __future__ import annotations

from typing import Any

from glidemq_py._client.memory.native.arguments import MAX_INT, UnusualError, as_argument, as_arguments, integer
from glidemq_py._client.memory.native.keyspace import KeyType

__all__ = ["Hashes"]


class Hashes(KeyType):
    """Commands of hashes without expiring fields."""

    names = (
        "hdel",
        "hexists",
        "hget",
        "hgetall",
        "hincrby",
        "hkeys",
        "hlen",
        "hmget",
        "hrandfield",
        "hscan",
        "hset",
        "hsetnx",
    )

    def _fields(self, key: bytes) -> dict[Any, bytes] | None:
        """Return the fields of a hash, or None."""
        found = self._find(key, self._hash)
        if found is None:
            return None
        if found._expiry_heap or found._expirations:
            raise UnusualError
        fields: dict[Any, bytes] = found._values
        return fields

    def _new_fields(self, key: bytes) -> dict[bytes, bytes]:
        """Return the fields of a hash, which is created if it does not exist; then fields must be added."""
        fields = self._fields(key)
        if fields is None:
            fields = self._store(key, self._hash()).value._values
        return fields

    _hscan, _hrandfield = KeyType._scan, KeyType._random_members

    def _hget(self, key: bytes, field: Any) -> bytes | None:
        fields = self._fields(key)
        return None if fields is None else fields.get(field if type(field) is bytes else as_argument(field))

    def _hmget(self, key: bytes, first: Any, *others: Any) -> list[bytes | None]:
        fields = self._fields(key)
        names = as_arguments((first, *others))
        if fields is None:
            return [None] * len(names)
        return [*map(fields.get, names)]

    def _hset(self, key: bytes, *pairs: Any) -> int:
        flat = as_arguments(pairs)
        if not flat or len(flat) % 2:
            raise UnusualError
        fields = self._new_fields(key)
        before = len(fields)
        if len(flat) == 2:
            fields[flat[0]] = flat[1]
        else:
            each = iter(flat)
            fields.update(zip(each, each, strict=True))
        return len(fields) - before

    def _hsetnx(self, key: bytes, field: Any, value: Any) -> int:
        name, text = as_argument(field), as_argument(value)
        fields = self._new_fields(key)
        if name in fields:
            return 0
        fields[name] = text
        return 1

    def _hincrby(self, key: bytes, field: Any, by: Any) -> int:
        amount, name = integer(by), as_argument(field)
        fields = self._fields(key)
        number = amount
        if fields is not None and name in fields:
            number += integer(fields[name])
        if not -MAX_INT <= number <= MAX_INT:
            raise UnusualError
        (self._new_fields(key) if fields is None else fields)[name] = b"%d" % number
        return number

    def _hdel(self, key: bytes, first: Any, *others: Any) -> int:
        names = as_arguments((first, *others))
        fields = self._fields(key)
        if fields is None:
            return 0
        before = len(fields)
        for name in names:
            fields.pop(name, None)
        if not fields:
            del self._database._dict[key]
            return before
        return before - len(fields)

    def _hexists(self, key: bytes, field: Any) -> int:
        fields = self._fields(key)
        return int(fields is not None and as_argument(field) in fields)

    def _hlen(self, key: bytes) -> int:
        fields = self._fields(key)
        return 0 if fields is None else len(fields)

    def _hkeys(self, key: bytes) -> list[bytes]:
        return [*(self._fields(key) or ())]

    def _hgetall(self, key: bytes) -> list[bytes]:
        fields = self._fields(key)
        return [] if fields is None else [part for pair in fields.items() for part in pair]
