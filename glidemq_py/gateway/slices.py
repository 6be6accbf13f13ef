"""Large answers: encoded in slices, between which the event loop serves other connections.

A job has up to 10 MiB of data, and an answer many jobs. To convert and pack them at once would hold up all connections
of the process. So the jobs of a large answer are encoded one by one, and a large one part by part; at most one slice of
the process runs per turn of the event loop. Only the encoded parts are kept: they take a fraction of the memory.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from itertools import islice, repeat
from typing import Any, Final, Self
from weakref import WeakKeyDictionary

from glidemq_py.gateway.table import Answer, CommandError
from glidemq_py.gateway.values import UNDEFINED, Encoded, PackedList, PortableMap, packed_portable, packed_value, plain

LARGE_CHARS: Final = 65_536
"""Data and results above it make an answer large."""
JOB_CHARS: Final = 512
"""Length of the data of a job that takes about as long as the rest of its object."""
_SLICE_S: Final = 0.01
_CHUNK: Final = 1_000
"""Elements of a list or map that are encoded together, unless they are heavy."""
_HEAVY: Final = 10_000
"""Elements, within a value, above which it is encoded in parts."""
_CHARS_PER_ELEMENT: Final = 256
"""Length of a text that takes about as long as an element."""

_CONTAINERS: Final = frozenset((dict, list, PortableMap))

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
"""Held by the slice that runs, per event loop."""


class Parts:
    """Encodes values in parts, as MessagePack for clients of the TCP protocol.

    A list or map is what `begin`, its chunks, and `end` return, joined.
    """

    name = "MessagePack"

    def whole(self, value: Any, *, is_portable: bool = False) -> bytes:
        """Return a value, encoded; one that is portable needs no conversion."""
        return packed_portable(value) if is_portable else packed_value(value)

    def members(self, value: Any) -> Any:
        """Return a list or map without the members that the format does not have."""
        return value

    def begin(self, value: Any) -> bytes:
        """Return the beginning of a list or map."""
        small, middle, large = (0x80, 0xDE, 0xDF) if isinstance(value, dict) else (0x90, 0xDC, 0xDD)
        size = len(value)  # pyright: ignore[reportUnknownArgumentType]
        if size < 16:
            return bytes([small | size])
        return bytes([middle]) + size.to_bytes(2, "big") if size < 65_536 else bytes([large]) + size.to_bytes(4, "big")

    def chunk(self, chunk: Any, *, is_first: bool, is_portable: bool) -> bytes:
        """Return some elements of a list or map, itself a list or map."""
        head = 1 if len(chunk) < 16 else 3  # bytes that begin the chunk itself
        return self.whole(chunk, is_portable=is_portable)[head:]

    def before(self, key: Any, *, is_first: bool) -> bytes:
        """Return what stands before an element: of a map its key, of a list, whose key is `UNDEFINED`, nothing."""
        return b"" if key is UNDEFINED else packed_value(key)

    def end(self, value: Any) -> bytes:
        """Return the end of a list or map."""
        return b""

    def content(self, answer: Answer) -> list[bytes]:
        """Return an answer, encoded, as bytes to join."""
        pieces = [self.begin(answer)]
        for key, value in answer.items():
            packed_key = _packed_keys.get(key)
            pieces.append(packed_value(key) if packed_key is None else packed_key)
            if value.__class__ is PackedList:
                pieces.append(self.begin(value))
                pieces += value
            elif value.__class__ is Encoded:
                pieces.append(value.content)
            elif value.__class__ is list and [each for each in value[:1] if each.__class__ is Encoded]:
                pieces.append(self.begin(value))
                pieces += [each.content for each in value]
            else:
                pieces.append(packed_portable(value) if key in _PORTABLE else packed_value(value))
        return pieces


_packed_keys: Final = {key: packed_value(key) for key in ("ok", "job", "jobs", "token", "tokens", "reqId")}
_PORTABLE: Final = frozenset(("ok", "token", "tokens"))


class _JsonParts(Parts):
    """JSON for clients of the HTTP API."""

    name = "JSON"

    def members(self, value: Any) -> Any:
        """See `Parts`."""
        if isinstance(value, list):
            return value  # pyright: ignore[reportUnknownVariableType]
        return {key: each for key, each in value.items() if each is not UNDEFINED}

    def whole(self, value: Any, *, is_portable: bool = False) -> bytes:
        """See `Parts`."""
        return json.dumps(plain(value), separators=(",", ":")).encode()

    def begin(self, value: Any) -> bytes:
        """See `Parts`."""
        return b"{" if isinstance(value, dict) else b"["

    def chunk(self, chunk: Any, *, is_first: bool, is_portable: bool) -> bytes:
        """See `Parts`."""
        return self.before(UNDEFINED, is_first=is_first) + self.whole(chunk)[1:-1]

    def before(self, key: Any, *, is_first: bool) -> bytes:
        """See `Parts`."""
        return (b"" if is_first else b",") + (b"" if key is UNDEFINED else self.whole(str(key)) + b":")

    def end(self, value: Any) -> bytes:
        """See `Parts`."""
        return b"}" if isinstance(value, dict) else b"]"

    def content(self, answer: Answer) -> list[bytes]:
        """See `Parts`."""
        members = self.members(answer).items()
        return [b"{", b",".join([self.before(key, is_first=True) + self._member(each) for key, each in members]), b"}"]

    def _member(self, value: Any) -> bytes:
        if value.__class__ is Encoded:
            return value.content
        if value.__class__ is list and [each for each in value[:1] if each.__class__ is Encoded]:
            return b"[%b]" % b",".join([each.content for each in value])
        return self.whole(value)


VALUE_PARTS: Final = Parts()
JSON_PARTS: Final = _JsonParts()


def too_deep(parts: Parts) -> str:
    """Return the error of an answer that its format cannot express."""
    return f"The answer is nested too deeply for {parts.name}"


class Slices:
    """Encodes the parts of a large answer: ``async with Slices(parts) as slices``. Nothing else may be awaited there.

    Args:
        parts: Encodes values.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        loop = asyncio.get_running_loop()
        lock = _turns.get(loop)
        if lock is None:
            lock = _turns[loop] = asyncio.Lock()
        self._lock, self._until, self._is_running = lock, 0.0, False

    async def __aenter__(self) -> Self:
        """Wait for the first slice."""
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the last slice."""
        if self._is_running:
            self._end()

    async def _begin(self) -> None:
        await self._lock.acquire()
        self._is_running, self._until = True, time.perf_counter() + _SLICE_S

    def _end(self) -> None:
        self._is_running = False
        self._lock.release()

    async def encoded(self, value: Any, job_id: str | None = None) -> Encoded:
        """Return a value, encoded.

        Args:
            value: The value.
            job_id: The id of the job whose object it is.

        Raises:
            CommandError: If it is nested too deeply.
        """
        pieces: list[bytes] = []
        try:
            await self._add(pieces, value)
        except (RecursionError, ValueError):  # data of another program
            raise CommandError(too_deep(self._parts)) from None
        return Encoded(pieces[0] if len(pieces) == 1 else b"".join(pieces), job_id)

    async def turn(self) -> None:
        """Let the event loop turn if the slice has lasted long enough."""
        if time.perf_counter() < self._until:
            return
        self._end()
        await asyncio.sleep(0)
        await self._begin()

    async def _add(self, pieces: list[bytes], value: Any, *, is_portable: bool = False) -> None:
        if value.__class__ is Encoded:
            pieces.append(value.content)
            return
        if not isinstance(value, (dict, list)) or not _is_heavy(value):
            pieces.append(self._parts.whole(value, is_portable=is_portable))
            await self.turn()
            return
        is_portable = is_portable or isinstance(value, PortableMap)
        value = self._parts.members(value)
        pieces.append(self._parts.begin(value))
        is_first = True
        for chunk in _chunks(value):
            if _is_heavy(chunk):
                await self._add_each(pieces, chunk, is_first=is_first, is_portable=is_portable)
            else:
                pieces.append(self._parts.chunk(chunk, is_first=is_first, is_portable=is_portable))
                await self.turn()
            is_first = False
        pieces.append(self._parts.end(value))

    async def _add_each(self, pieces: list[bytes], chunk: Any, *, is_first: bool, is_portable: bool) -> None:
        """Add the elements of a list or map one by one."""
        elements = chunk.items() if chunk.__class__ is dict else zip(repeat(UNDEFINED), chunk, strict=False)
        for key, each in elements:
            pieces.append(self._parts.before(key, is_first=is_first))
            await self._add(pieces, each, is_portable=is_portable)
            is_first = False


def _chunks(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for start in range(0, len(value), _CHUNK):  # pyright: ignore[reportUnknownArgumentType]
            yield value[start : start + _CHUNK]
        return
    items = iter(value.items())
    while chunk := dict(islice(items, _CHUNK)):
        yield chunk


def _is_heavy(value: Any) -> bool:
    """Return whether a value has so many elements that it is encoded in parts. It looks at few more than these."""
    weight, inner = 0, [value]
    while inner:
        each = inner.pop()
        elements: Any = each.values() if hasattr(each, "values") else each
        weight += len(elements)
        if weight > _HEAVY:
            return True
        for element in elements:
            kind = element.__class__
            if kind in _CONTAINERS:
                inner.append(element)
            elif kind is str or kind is bytes:
                weight += len(element) // _CHARS_PER_ELEMENT
            elif kind is Encoded:
                return True
    return weight > _HEAVY
