"""Connections of Spark's processes: one for each server and process, kept from task to task.

What is pickled to the executors is how to connect, never a connection; a password that is to be taken from the
environment is looked up where it is used.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field

from glidemq_py._client.blocking_transport import ThreadTransport
from glidemq_py._client.connect import config_of
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.server_check import check_blocking
from glidemq_py.errors import ClosedError, GlideMQValidationError
from glidemq_py.errors.base import SECRET

__all__ = ["Place", "transport_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the server is.

    Attributes:
        options: how to reach it.
        password_env: name of an environment variable of the executors that holds the password, or ''.
    """

    options: ConnectionOptions
    password_env: str = field(default="")

    def resolve(self) -> ConnectionOptions:
        """The options, with the password of this process's environment. Raises GlideMQValidationError."""
        if not self.password_env:
            return self.options
        password = os.environ.get(self.password_env)
        if not password:
            raise GlideMQValidationError(
                "passwordEnv", self.password_env, "is not set in the environment of this process"
            )
        names = [name for name in ConnectionOptions.__dataclass_fields__ if name != "password"]
        try:
            return ConnectionOptions(password=password, **{name: getattr(self.options, name) for name in names})
        except GlideMQValidationError as error:
            raise GlideMQValidationError("passwordEnv", SECRET, error.problem) from None


_open: dict[tuple[int, Place, int], ThreadTransport] = {}
"""By process: a fork must not use its parent's."""


def transport_of(place: Place, lane: int = 0) -> ThreadTransport:
    """The connection of this process, or a further one, for a thread beside. Raises GlideMQConnectionError."""
    key = (os.getpid(), place, lane)
    found = _open.get(key)
    if found is None:
        options = place.resolve()
        found = ThreadTransport(config_of(options))
        if not lane:
            try:
                check_blocking(found, options)
            except BaseException:
                found.close()
                raise
        _open[key] = found
    return found


def forget(place: Place) -> None:
    """Close the connection of this process; the next one who needs it makes a new one."""
    found = _open.pop((os.getpid(), place, 0), None)
    if found is not None:
        with contextlib.suppress(ClosedError, OSError):
            found.close()
