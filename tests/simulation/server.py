"""The simulated server: the in-memory server with a virtual clock, which can lose its last writes and its functions."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, Final

from tests.inside import Clock, CommandError, MemoryServer
from tests.simulation.loop import SimulatedLoop
from tests.simulation.substitutes import EPOCH_S

__all__ = ["SimulatedServer"]

FUNCTION_CALLS: Final = (b"FCALL", b"FCALL_RO")
_ACTIVATION: Final = (b"state", b"active")


def fields_of(xadd: list[Any]) -> dict[bytes, bytes]:
    """Return the fields of the entry that an XADD with these arguments adds."""
    at = xadd.index(b"*") + 1
    return dict(zip(xadd[at::2], xadd[at + 1 :: 2], strict=True))


class _VirtualClock(Clock):
    def __init__(self, loop: SimulatedLoop):
        super().__init__(0)
        self._loop = loop
        self.skew_us = 0

    def micros(self) -> int:
        return round((EPOCH_S + self._loop.now) * 1_000_000) + self.skew_us


class SimulatedServer(MemoryServer):
    """A server whose state can be copied and restored.

    Args:
        loop: its clock.
        mutate: changes the text of the function library when it is loaded, for tests of the simulation itself.
        queues: names of the queues whose events are recorded.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        mutate: Callable[[str], str] = str,
        *,
        queues: Sequence[str] = ("simulated",),
    ):
        names = [name.encode() for name in queues]
        self._queues = {b"glide:{%b}" % name: name for name in names}
        self.virtual_clock = _VirtualClock(loop)
        super().__init__(self.virtual_clock)
        self._mutate = mutate
        self._has_library = False
        self._compiled: str | None = None
        self.executed = 0
        self.lagging = 0
        """Number of failovers whose replica has received its last write: it confirms no later one."""
        self.on_event: Callable[[dict[bytes, bytes]], object] = lambda _: None
        """Called with the fields of every entry of the events streams; with an event `activated` (with `fence`) when a
        job becomes active; and with an event `state` (with `state`, `at` in ms; `new` and `data` for a new record)
        whenever the state of a job is written. Each has its `queue` and `call`, the number of the command."""
        execute = self._store.execute

        def tapped(name: bytes, args: list[bytes], *, script: bool) -> Any:
            reply = execute(name, args, script=script)
            if name == b"XADD":
                self._tap_xadd(*args)
            elif name == b"HSET":
                self._tap_hset(*args)
            return reply

        self._store.execute = tapped  # type: ignore[method-assign]

    def _recorded(self, prefix: bytes) -> bytes | None:
        """Return the name of the queue with these keys, or of the partition; None if its events are not recorded."""
        queue = self._queues.get(prefix)
        if queue is None and b"~p~" in prefix and prefix.partition(b"~p~")[0] + b"}" in self._queues:
            return prefix[7:-1]
        return queue

    def _tap_xadd(self, key: bytes, *args: Any):
        queue = self._recorded(key[:-7]) if key.endswith(b":events") else None
        if queue is not None:
            self.on_event({**fields_of([*args]), b"queue": queue, b"call": b"%d" % self.executed})

    def _tap_hset(self, key: bytes, *args: Any):
        if b"state" not in args:
            return
        prefix, found, job_id = key.partition(b":job:")
        queue = self._recorded(prefix) if found else None
        if queue is None:
            return
        fields = dict(zip(args[::2], args[1::2], strict=True))
        if b"state" not in fields:
            return
        at = b"%d" % (self.virtual_clock.micros() // 1000)
        event = {b"event": b"state", b"jobId": job_id, b"state": fields[b"state"], b"queue": queue, b"at": at,
                 b"call": b"%d" % self.executed}  # fmt: skip
        if b"timestamp" in fields:
            event |= {b"new": b"1", b"data": fields.get(b"data", b"")}
        self.on_event(event)
        if args[:2] == _ACTIVATION:
            fence = b"%d" % int(fields[b"fence"])
            self.on_event({**event, b"event": b"activated", b"fence": fence})

    def run_command(self, args: list[bytes]) -> Any:
        """Run a command and return its reply in GLIDE's types. Raises CommandError."""
        name = args[0].upper()
        self.executed += 1
        if name in FUNCTION_CALLS:
            if not self._has_library:
                raise CommandError("ERR Function not found")
            count = int(args[2])
            with self._acting():
                return self._engine.call(args[1].decode(), args[3 : 3 + count], args[3 + count :])
        if name == b"FUNCTION":
            return self._function_command(args)
        if name == b"PUBLISH":
            return self._store.execute(name, args[1:], script=False)
        if name == b"INFO":
            return b"# Replication\r\nconnected_slaves:1\r\n"
        if name == b"WAIT":
            return 0 if self.lagging else 1
        return self.command(args)

    def _function_command(self, args: list[bytes]) -> Any:
        verb = args[1].upper()
        if verb == b"LOAD":
            if self._has_library:
                raise CommandError("ERR Library already exists")
            code = args[-1].decode()
            if self._compiled != code:
                self._compiled = code
                self._engine.load_code(self._mutate(code))
            self._has_library = True
            return "OK"
        if verb == b"LIST":
            return []
        raise CommandError(f"ERR unknown subcommand {verb.decode()}")

    def lose_functions(self):
        """FUNCTION FLUSH, as at a node that never had the library."""
        self._has_library = False

    def keys_of_jobs(self, prefix: bytes) -> list[bytes]:
        """Return the keys of records, without any effect on the run."""
        return [key for key in self._keys() if key.startswith(prefix)]

    def _keys(self) -> Any:
        return self._store._database._dict

    def copy_state(self) -> bytes:
        """Return a copy of all keys."""
        return pickle.dumps((self._keys(), self._heap()), protocol=pickle.HIGHEST_PROTOCOL)

    def _heap(self) -> Any:
        return self._store._database._expiry_heap

    def restore_state(self, state: bytes):
        """Replace all keys by those of an earlier `copy_state`: the writes since then are lost."""
        kept, heap = pickle.loads(state)
        keys, self._heap()[:] = self._keys(), heap
        keys.clear()
        keys.update(kept)
