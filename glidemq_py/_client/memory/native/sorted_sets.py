"""Native commands of sorted sets."""

from __future__ import annotations

from typing import Any

from glidemq_py._client.memory.native.arguments import (
    UnusualError,
    as_argument,
    as_arguments,
    integer,
    read_score,
    score_limits,
    write_number,
)
from glidemq_py._client.memory.native.keyspace import KeyType

__all__ = ["SortedSets"]


class SortedSets(KeyType):
    """Commands of sorted sets."""

    names = ("zadd", "zcard", "zcount", "zrandmember", "zrange", "zrangebyscore", "zrem", "zscan", "zscore")
    _zscan, _zrandmember = KeyType._scan, KeyType._random_members

    def _zadd(self, key: bytes, *pairs: Any) -> int:
        keeps = pairs[0] == b"NX"
        if keeps:
            pairs = pairs[1:]
        if not pairs or len(pairs) % 2:
            raise UnusualError
        scores = [read_score(each) for each in pairs[::2]]
        members = as_arguments(pairs[1::2])
        found = self._find(key, self._zset)
        if found is None:
            found = self._store(key, self._zset()).value
        scored, by_score, count = found._bylex, found._byscore, 0
        for new, name in zip(scores, members, strict=True):
            old = scored.get(name)
            if old is None:
                count += 1
            elif keeps or old == new:
                continue
            else:
                by_score.remove((old, name))
            scored[name] = new
            by_score.add((new, name))
        return count

    def _zrem(self, key: bytes, first: Any, *others: Any) -> int:
        members = as_arguments((first, *others))
        found = self._find(key, self._zset)
        if found is None:
            return 0
        scored, count = found._bylex, 0
        for name in members:
            score = scored.pop(name, None)
            if score is not None:
                found._byscore.remove((score, name))
                count += 1
        if not scored:
            del self._database._dict[key]
        return count

    def _zscore(self, key: bytes, member: Any) -> bytes | None:
        found = self._find(key, self._zset)
        if found is None:
            return None
        score = found._bylex.get(as_argument(member))
        return None if score is None else write_number(score)

    def _zcard(self, key: bytes) -> int:
        found = self._find(key, self._zset)
        return 0 if found is None else len(found._bylex)

    def _zcount(self, key: bytes, low: Any, high: Any) -> int:
        first, last = score_limits(low, high)
        found = self._find(key, self._zset)
        if found is None:
            return 0
        by_score = found._byscore
        count: int = by_score.bisect_left(last) - by_score.bisect_left(first)
        return max(0, count)

    def _zrange(self, key: bytes, start: Any, stop: Any, *options: Any) -> list[bytes]:
        first, last = integer(start), integer(stop)
        if options and options != (b"WITHSCORES",):
            raise UnusualError
        found = self._find(key, self._zset)
        if found is None:
            return []
        by_score = found._byscore
        length = len(by_score)
        first = max(0, first + length) if first < 0 else first
        last = last + length if last < 0 else last
        if first > last or first >= length:
            return []
        return _flat(by_score.islice(first, last + 1), options)

    def _zrangebyscore(self, key: bytes, low: Any, high: Any, *options: Any) -> list[bytes]:
        first, last = score_limits(low, high)
        offset, count = 0, None
        if options and options[-3:-2] == (b"LIMIT",):
            offset, count = integer(options[-2]), integer(options[-1])
            options = options[:-3]
            if offset < 0 or count < 0:
                raise UnusualError
        if options and options != (b"WITHSCORES",):
            raise UnusualError
        found = self._find(key, self._zset)
        if found is None:
            return []
        by_score = found._byscore
        if by_score[0] >= last:
            return []
        at = by_score.bisect_left(first) + offset
        end = by_score.bisect_left(last)
        return _flat(by_score.islice(at, end if count is None else min(end, at + count)), options)


def _flat(pairs: Any, options: tuple[Any, ...]) -> list[bytes]:
    """Return the members, with their scores if the options say so."""
    if not options:
        return [member for _, member in pairs]
    return [part for score, member in pairs for part in (member, write_number(score))]
