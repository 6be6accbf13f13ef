"""Connections of Spark's processes: one per server and process, kept between tasks.

Executors receive pickled connection options, never a connection. A password from the environment is read in the process
that uses it.
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
    """The server to connect to.

    Attributes:
        options: connection options.
        password_env: name of the executors' environment variable that holds the password, or ''.
    """

    options: ConnectionOptions
    password_env: str = field(default="")

    def resolve(self) -> ConnectionOptions:
        """Return the options with the password from this process's environment.

        Raises:
            GlideMQValidationError: if the environment variable is not set, or the password is invalid.
        """
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
"""Open connections by process id, place and lane: a fork must not use its parent's connection."""


def transport_of(place: Place, lane: int = 0) -> ThreadTransport:
    """Return the connection of this process; a lane other than 0 is a further connection for another thread.

    Raises:
        GlideMQConnectionError: if the server cannot be reached.
    """
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
    """Close the connection of this process; the next use opens a new one."""
    found = _open.pop((os.getpid(), place, 0), None)
    if found is not None:
        with contextlib.suppress(ClosedError, OSError):
            found.close()
