"""Errors of the connection, the server, its function library, and the event loop of a connection."""

from __future__ import annotations

from glidemq_py.errors.base import GlideMQError, _message_of

__all__ = [
    "AmbiguousResultError",
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
    "ServerNotReadyError",
    "ServerOutOfMemoryError",
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

    The job was added, and exists unless the server lost it. Adding it again is safe if ``job_id`` is set, while
    the job is kept.

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
        again = "adding it again is safe if its job_id is set and it is kept"
        return f"{job} was added, but may be lost: {self.reason}; {again}"


class ServerNotReadyError(GlideMQConnectionError):
    """The server cannot run commands at the moment; the call was not executed.

    Raised while a server loads its data, a cluster fails over, a node is a read-only replica, a script blocks the
    server, too few replicas are connected, or the server cannot write to disk; also if a cluster moves the hash slot of
    the queue, or another client changes the schedulers, for longer than calls are retried. Sending the call again is
    always safe.
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


class SearchIndexError(GlideMQError):
    """The search module rejected an index or a query, or the server has none."""


class EmbeddedServerError(GlideMQError):
    """The embedded server cannot be started; it requires the extra: pip install "glidemq-py[embedded]"."""


class ClosedError(GlideMQError):
    """A closed queue, worker or connection was used."""


class ConnectionRejectedError(GlideMQConnectionError):
    """The server is reachable but rejects this connection; retrying does not help.

    The message names the cause: a wrong user or password, TLS on one side only, a certificate, a cluster URL for a
    standalone server or the other way round, or a `maxmemory-policy` that deletes jobs.
    """


class EventLoopError(GlideMQError, RuntimeError):
    """An object was used outside the event loop it belongs to, or in the wrong kind of ``with`` block.

    Nothing was sent.

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
