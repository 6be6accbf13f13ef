"""The base class of all errors, invalid values in messages, and errors of arguments, connection and server."""

from __future__ import annotations

import inspect
import re
import reprlib
from typing import Final, dataclass_transform

_VALUE_WIDTH: Final = 80
_SECRET: Final = "***"


_short_repr = reprlib.Repr()  # sets are sorted
_short_repr.maxstring = _VALUE_WIDTH
_short_repr.maxother = _VALUE_WIDTH
_short_repr.maxlong = _VALUE_WIDTH


class _Secret:
    """Placeholder for a secret value in an error."""

    __slots__ = ()

    def __repr__(self) -> str:
        return _SECRET

    def __reduce__(self) -> str:
        return "SECRET"


SECRET: Final = _Secret()
"""Pass this instead of a password to a validation error."""


_SERVER_URL: Final = re.compile(r"\b((?:valkey|redis)s?(?:\+cluster)?):(/.*)", re.IGNORECASE | re.DOTALL)
_HARMLESS: Final = re.compile(
    r"//(?:(?:\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-f:.]+\]|localhost|[a-z0-9-]+(?:\.[a-z0-9-]+)+)(?::\d{1,5})?"
    r"|[a-z0-9-]+:(?:63[789]\d|70\d\d))(?:/\d?\d?)?[\])}'\"]*",
    re.IGNORECASE | re.ASCII,
)
"""The rest of a URL that is clearly a host and a port. Without a dot or a usual port it may be user:password."""
_LONGEST_URL: Final = 10_000
_CREDENTIALS: Final = re.compile(r"([a-z][a-z0-9+.-]*://).*@", re.IGNORECASE | re.DOTALL)


def hide_urls(text: str) -> str:
    """Return the text with every server URL as `valkey://***`, and without the credentials of any other URL.

    A server URL ends where the text ends, because a password may contain spaces and quotes: use this for text of
    unknown origin, not for messages that already contain the redacted URL. An address without user, password, query
    and fragment is kept if the text ends with it.
    """
    if ":/" not in text or len(text) > _LONGEST_URL:
        return text
    return _CREDENTIALS.sub(rf"\1{_SECRET}@", _SERVER_URL.sub(_redacted, text))


def _redacted(found: re.Match[str]) -> str:
    return found[0] if _HARMLESS.fullmatch(found[2]) else f"{found[1]}://{_SECRET}"


def show_value(value: object) -> str:
    """Return the `repr` of a rejected value: at most 80 characters, no password of a URL, never an exception."""
    try:
        # Shortened after the URLs are hidden: a cut may remove what marks them.
        text = _short_repr.repr(hide_urls(value)) if isinstance(value, str) else hide_urls(_short_repr.repr(value))
    except BaseException:  # a broken __repr__ must not replace the actual error
        text = object.__repr__(value)
    return text if len(text) <= _VALUE_WIDTH else text[: _VALUE_WIDTH - 3] + "..."


class GlideMQError(Exception):
    """Base class of all errors of this package."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(args or (_message_of(type(self)),)))


def _message_of(kind: type[BaseException]) -> str:
    doc = kind.__doc__ or kind.__name__
    return doc.strip().split("\n", 1)[0].rstrip(".")


@dataclass_transform(eq_default=False)
class StructuredError(GlideMQError):
    """Base of errors whose arguments are their attributes: the annotated names; one with a value may be left out."""

    __signature__ = inspect.Signature()

    def __init_subclass__(cls) -> None:
        if not cls.__module__.startswith(__name__.rpartition(".")[0]):
            return  # the annotations of a user's class are not its arguments
        kind = inspect.Parameter
        own = (
            kind(name, kind.POSITIONAL_OR_KEYWORD, default=vars(cls).get(name, kind.empty))
            for name in inspect.get_annotations(cls)
        )
        cls.__signature__ = inspect.Signature([*cls.__signature__.parameters.values(), *own])

    def __init__(self, *args: object, **given: object) -> None:
        bound = self.__signature__.bind(*args, **given)
        bound.apply_defaults()
        super().__init__(*bound.args)
        self.__dict__.update(bound.arguments)


class GlideMQValidationError(GlideMQError, ValueError):
    """An option or argument is invalid, or not supported here; nothing was changed.

    The message is ``option 'attempts' = -1: must be an integer from 0 to 1,000,000``.

    Args:
        option: name of the option, as the caller writes it.
        value: the invalid value.
        problem: the problem or the allowed values, such as "must be an integer from 0 to 10" or "requires 'parent'".
    """

    option: str
    value: object
    problem: str

    def __init__(self, option: str, value: object, problem: str) -> None:
        if isinstance(option, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            option = hide_urls(option)
        if isinstance(value, str):
            # A URL in the wrong place (a queue name, an unknown option) must not show its password.
            value = hide_urls(value)
        super().__init__(option, value, problem)
        self.option = option
        self.value = value
        self.problem = problem

    def __str__(self) -> str:
        return f"option {self.option!r} = {show_value(self.value)}: {self.problem}"


class UnknownOptionError(GlideMQValidationError, TypeError):
    """The option does not exist.

    Attributes:
        suggestion: the most similar existing option, or None.
    """

    suggestion: str | None

    def __init__(self, option: str, value: object, problem: str = "", suggestion: str | None = None) -> None:
        text = problem or "unknown option"
        if suggestion is not None and not problem:
            text = f"{text}; did you mean {suggestion!r}?"
        super().__init__(option, value, text)
        self.suggestion = suggestion


class MissingOptionError(GlideMQValidationError, TypeError):
    """A required option was not given, or is None."""


class PayloadTooLargeError(GlideMQValidationError):
    """The serialized text exceeds the size limit.

    Attributes:
        size: size of the text in UTF-8 bytes, before compression.
        limit: the maximum size in bytes.
    """

    size: int
    limit: int

    def __init__(self, option: str, size: int, limit: int) -> None:
        super().__init__(option, size, f"{size:,} bytes exceed the limit of {limit:,} bytes")
        self.args = (option, size, limit)
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return f"option {self.option!r}: {self.problem}"


class SerializationError(GlideMQValidationError):
    """A value cannot be serialized, or a text cannot be deserialized."""


class ColumnError(GlideMQValidationError):
    """A column of a Spark data frame has an invalid type or value.

    Attributes:
        option: name of the column.
        row: number of the invalid row in its partition, or None if the whole column is invalid.
    """

    row: int | None

    def __init__(self, option: str, value: object, problem: str, row: int | None = None) -> None:
        super().__init__(option, value, problem)
        self.args = (option, value, problem, row)
        self.row = row

    def __str__(self) -> str:
        if self.row is None:
            return f"column {self.option!r} {self.problem}"
        return f"column {self.option!r}, row {self.row} of its partition = {show_value(self.value)}: {self.problem}"


class GlideMQConnectionError(GlideMQError, ConnectionError):
    """The server cannot be reached."""


class AmbiguousResultError(GlideMQConnectionError):
    """The call was sent and its reply was lost; the server may have executed it.

    Attributes:
        timed_out: Whether there was no reply within the request timeout; False if the connection was lost earlier.
    """

    timed_out: bool = False


class DurabilityError(StructuredError, AmbiguousResultError):
    """The server did not confirm in time that an added job survives a failure.

    The job was added, and exists unless the server lost it. Adding it again is safe if ``job_id`` is set, while
    the job is kept.

    Attributes:
        reason: The missing part.
        job_id: id of the job.
    """

    reason: str
    job_id: str | None = None

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


class EventLoopError(StructuredError, RuntimeError):
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

    def __str__(self) -> str:
        return f"{self.subject}: {self.problem}; {self.remedy}"
