"""The keys that native commands read and write: fakeredis' database."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, ClassVar

from glidemq_py._client.memory.native.arguments import Native, UnusualError, as_argument, integer

__all__ = ["KeyType", "Keyspace"]


class Keyspace:
    """The keys of one database.

    Args:
        database: fakeredis' database.
        config: the configuration of fakeredis' server.
        touched: called with a key whose change may end a blocking read.
    """

    def __init__(self, database: Any, config: dict[bytes, bytes], touched: Callable[[bytes], object]) -> None:
        self.database = database
        self.config = config
        self.touched = touched
        self.listeners: list[Callable[[bytes], bool]] = []
        """Subscribers of channels: called with the channel of a message; True if it is theirs."""
        # (Imported here because fakeredis is optional.)
        self.item: Any = importlib.import_module("fakeredis._core._database").Item
        self.models: Any = importlib.import_module("fakeredis.model")


class KeyType:
    """Commands of one type of keys. ``names`` are those of the methods, which begin with an underscore."""

    names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, keyspace: Keyspace) -> None:
        self._database = keyspace.database
        self._config = keyspace.config
        self._touched = keyspace.touched
        self._listeners = keyspace.listeners
        self._item = keyspace.item
        models = keyspace.models
        self._hash, self._zset, self._stream = models.Hash, models.ZSet, models.XStream
        self._members_type, self._entry_key = models.ExpiringMembersSet, models.StreamEntryKey

    def commands(self) -> dict[bytes, Native]:
        """Return the methods by the names of their commands."""
        return {name.upper().encode(): getattr(self, f"_{name}") for name in self.names}

    def _live(self, key: bytes) -> Any:
        """Return the item of a key, or None; delete it if it has expired."""
        database = self._database
        item = database._dict.get(key)
        if item is None:
            if type(key) is not bytes:
                raise UnusualError
            return None
        if item.expireat is not None and item.expireat < database.time:
            del database._dict[key]
            return None
        return item

    def _find(self, key: bytes, kind: type) -> Any:
        """Return the value of a key, which must be of this type, or None."""
        item = self._live(key)
        if item is None:
            return None
        value = item.value
        if type(value) is not kind:
            raise UnusualError
        return value

    def _store(self, key: bytes, value: Any) -> Any:
        """Store a value without an expiry time and return its item."""
        if type(key) is not bytes:
            raise UnusualError
        item = self._database._dict[key] = self._item(value)
        return item

    def _missing(self, key: bytes) -> None:
        """Return if the key does not exist; otherwise raise UnusualError."""
        if self._live(key) is not None:
            raise UnusualError

    def _scan(self, key: bytes, cursor: Any, word: bytes, count: Any) -> list[Any]:
        """HSCAN, SSCAN or ZSCAN of a missing key, with COUNT."""
        if as_argument(cursor) != b"0" or word != b"COUNT" or integer(count) < 1:
            raise UnusualError
        self._missing(key)
        return [b"0", []]

    def _random_members(self, key: bytes, count: Any) -> list[bytes]:
        """HRANDFIELD or ZRANDMEMBER of a missing key, with a count."""
        integer(count)
        self._missing(key)
        return []
