"""`BackgroundService`: the base class of objects that run background tasks without a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar, Self

from glidemq_py._client.runtime import BackgroundTask
from glidemq_py.errors import GlideMQError


class BackgroundService:
    """Runs tasks from its start until it is closed."""

    _title: ClassVar[str]
    """Its name in messages."""

    def __init__(self) -> None:
        self._tasks: Sequence[BackgroundTask] = ()

    async def _open(self) -> Sequence[BackgroundTask]:
        """Connect, and return the tasks to run."""
        raise NotImplementedError

    async def start(self) -> None:
        """Connect and start in the running event loop.

        Raises:
            GlideMQConnectionError: If the server cannot be reached.
            GlideMQError: If it was already started.
        """
        if self._tasks:
            raise GlideMQError(f"the {self._title} was already started; make a new one")
        self._tasks = await self._open()
        for task in self._tasks:
            task.start()

    async def run(self) -> None:
        """Start, and run until cancelled."""
        async with self:
            await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        """Stop. Idempotent."""
        await asyncio.shield(asyncio.gather(*(task.close() for task in self._tasks)))  # also if cancelled again

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
