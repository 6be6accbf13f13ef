"""A maintenance task: detects clients of other libraries, which may write keys of a job that nothing else names.

A Node client writes a job's log and chunks by plain commands. So a job that is removed when it ends is deleted with a
fixed list of keys, unless no such client can have been there: each of them needs the function library `glidemq` on the
server. This task looks for it. Jobs that were removed without the list shortly before the library appeared are cleaned
up.
"""

from __future__ import annotations

from typing import Final

from glidemq_py._client.async_transport import AsyncTransport
from glidemq_py._client.background import PeriodicTask
from glidemq_py._client.library_publishing import published
from glidemq_py._core.calls.working import Keep, delete_side_keys
from glidemq_py._core.logs import get_logger
from glidemq_py._job.link import QueueLink
from glidemq_py.errors import GlideMQError, LibraryError

__all__ = ["PeerDetection"]

_log = get_logger(__name__)

_LIBRARY: Final = "glidemq"
_EVERY_S: Final = 10.0
_FIRST_S: Final = 1.0
_REMEMBERED: Final = 50_000
"""Maximum number of removed jobs between two checks that are remembered; further ones are removed with all keys."""
_A_CALL: Final = 500
_LOOKS: Final = 7
"""Successful cleanups, ten seconds apart, in which a job that still exists is tried: a call may take that long."""
_ALL_KEYS: Final = 1
_RECORD_ONLY: Final = 2


class PeerDetection(PeriodicTask):
    """Runs every ten seconds (±10%) until a peer's library was found, then hourly.

    Args:
        link: The queue.
        transport: The worker's connection.
    """

    def __init__(self, link: QueueLink, transport: AsyncTransport) -> None:
        super().__init__("peers", queue=link.keys.name, what="looking for clients of other libraries", every=_EVERY_S)
        self._pause = _FIRST_S
        self._link = link
        self._transport = transport
        self.alone = False
        """True if the last check found no library of a peer."""
        self._recent: list[str] = []
        self._earlier: list[str] = []
        self._unclean: list[str] = []
        self._looks_left = 0

    def removal(self, job_id: str) -> Keep:
        """Return how a job that ends now is removed, see `Keep`."""
        if not self.alone or len(self._recent) >= _REMEMBERED:
            return _ALL_KEYS
        self._recent.append(job_id)
        return _RECORD_ONLY

    async def run_once(self) -> None:
        """Look for the library. Raises GlideMQError."""
        try:
            found = any((await published(self._transport, _LIBRARY)).values())
        except LibraryError as error:
            _log.debug("queue %r: assuming clients of other libraries: %s", self._link.keys.name, error)
            found = True  # this user may not list libraries
        except GlideMQError:
            self.alone = False
            raise
        if found:
            if self.alone:
                self._looks_left = _LOOKS
            self.alone = False
            self._unclean += [*self._earlier, *self._recent]
            self._earlier, self._recent = [], []
        else:
            self.alone = True
            self._earlier, self._recent = self._recent, []
        await self._clean_up()
        if found and not self._unclean:
            self._pause = 3600.0

    async def _clean_up(self) -> None:
        """Delete the keys of removed jobs. Ids are forgotten only when their call has succeeded.

        A job that still exists may have been removed by a call that is still under way: it is tried again.
        """
        exist: list[str] = []
        while self._unclean:
            call = delete_side_keys(self._link.keys.meta, self._unclean[:_A_CALL])
            exist += await self._link.transport.call(call)
            del self._unclean[:_A_CALL]
        self._looks_left -= 1
        if self._looks_left > 0:
            self._unclean = exist
