"""Native commands of streams."""

from __future__ import annotations

from typing import Any, Final

from glidemq_py._client.memory.native.arguments import OK, Status, UnusualError, as_arguments, integer
from glidemq_py._client.memory.native.keyspace import KeyType

__all__ = ["Streams"]

_NODE_LIMITS: Final = (b"stream-node-max-entries", b"stream-node-max-bytes")
_TRIMMED_AT_ONCE: Final = 10_000
"""Entries that an approximate trimming removes at most: 100 nodes of 100 entries."""


class Streams(KeyType):
    """Commands of streams."""

    names = ("xack", "xadd", "xdel", "xgroup", "xinfo", "xlen", "xpending", "xreadgroup")

    def _xlen(self, key: bytes) -> int:
        found = self._find(key, self._stream)
        return 0 if found is None else len(found._ids)

    def _xadd(self, key: bytes, *options: Any) -> bytes:
        values = as_arguments(options)
        kept = None
        if values[0] == b"MAXLEN" and values[1] == b"~" and values[3] == b"*":
            kept = integer(values[2])
            fields = values[4:]
        elif values[0] == b"*":
            fields = values[1:]
        else:
            raise UnusualError
        config = self._config
        if not fields or len(fields) % 2 or (kept or 0) < 0 or any(name in config for name in _NODE_LIMITS):
            raise UnusualError
        found = self._find(key, self._stream)
        stream = self._stream() if found is None else found
        entry = stream.next_id(None)
        if entry is None:
            raise UnusualError
        stream.add(fields, entry)
        if found is None:
            self._store(key, stream)
        if kept is not None and len(stream._ids) > kept:
            stream.trim(kept, None, True, _TRIMMED_AT_ONCE)
        self._touched(key)
        return b"%d-%d" % entry

    def _entry_keys(self, entries: tuple[Any, ...]) -> list[Any]:
        keys: list[Any] = []
        for text in entries:
            time, dash, number = text.partition(b"-")
            if not dash or not time.isdigit() or not number.isdigit() or len(time) > 18 or len(number) > 18:
                raise UnusualError
            keys.append(self._entry_key(int(time), int(number)))
        return keys

    def _xack(self, key: bytes, group: bytes, first: bytes, *others: bytes) -> int:
        stream = self._find(key, self._stream)
        found = None if stream is None else stream._groups.get(group)
        if found is None:
            return 0
        entries, count = self._entry_keys((first, *others)), 0
        for entry in entries:
            pending = found.pel.pop(entry, None)
            if pending is not None:
                count += 1
                consumer = found.consumers.get(pending.consumer_name)
                if consumer is not None:
                    consumer.pending -= 1
        return count

    def _xdel(self, key: bytes, first: bytes, *others: bytes) -> int:
        stream = self._find(key, self._stream)
        if stream is None:
            return 0
        entries, count = self._entry_keys((first, *others)), 0
        for entry in entries:
            if entry in stream._values_dict:
                stream._delete_at(stream.find_index(entry)[0])
                count += 1
        return count

    def _xgroup(self, verb: bytes, key: bytes, group: bytes, entry: bytes) -> Status:
        """Only the form ``SETID key group $``."""
        if verb != b"SETID" or entry != b"$":
            raise UnusualError
        self._group(key, group).set_id(self._find(key, self._stream).last_id, None)
        return OK

    def _xinfo(self, verb: bytes, key: bytes, *group: bytes) -> list[Any]:
        if verb == b"STREAM" and not group:
            stream = self._find(key, self._stream)
            if stream is None:
                raise UnusualError
            found: list[Any] = stream.stream_info(False, False)
            return found
        if verb == b"GROUPS" and not group:
            stream = self._find(key, self._stream)
            return [[part for pair in each.group_info(False).items() for part in pair]
                    for each in stream._groups.values()]  # fmt: skip
        if verb != b"CONSUMERS":
            raise UnusualError
        (name,) = group
        consumers = self._group(key, name).consumers.values()
        now = int(self._database.time * 1000)
        return [[b"name", each.name, b"pending", each.pending, b"idle", now - each.last_attempt,
                 b"inactive", now - each.last_success] for each in consumers]  # fmt: skip

    def _xpending(self, key: bytes, group: bytes, first: bytes, last: bytes, count: Any, *consumer: bytes) -> list[Any]:
        """Only if the group has no pending entry."""
        if len(consumer) > 1 or first != b"-" or last != b"+" or integer(count) < 1 or self._group(key, group).pel:
            raise UnusualError
        return []

    def _group(self, key: bytes, name: bytes) -> Any:
        stream = self._find(key, self._stream)
        found = None if stream is None else stream._groups.get(name)
        if found is None:
            raise UnusualError
        return found

    def _xreadgroup(self, *args: Any) -> list[Any] | None:
        found = self.read_group(*args)
        return [[key, entries] for key, entries in found.items()] if found else None

    def read_group(self, word: bytes, group: bytes, consumer: bytes, *options: Any) -> dict[bytes, list[Any]]:
        """Run an XREADGROUP of new entries that does not block. Return the entries by stream."""
        count, keeps, at = None, True, 0
        while (option := options[at]) != b"STREAMS":
            if option == b"COUNT":
                count, at = integer(options[at + 1]), at + 2
            elif option == b"NOACK":
                keeps, at = False, at + 1
            else:
                raise UnusualError
        keys = options[at + 1 : at + 1 + (len(options) - at) // 2]
        after = options[at + 1 + len(keys) :]
        if word != b"GROUP" or (count is not None and count <= 0) or after != (b">",) * len(keys) or not keys:
            raise UnusualError
        groups = [self._group(key, group) for key in keys]
        found: dict[bytes, list[Any]] = {}
        for key, each in zip(keys, groups, strict=True):
            entries = each.group_read(consumer, b">", count, not keeps)
            if entries:
                found[key] = entries
        return found
