"""The error of an object that is used in the wrong event loop."""

from __future__ import annotations

from glidemq_py.errors.base import GlideMQError

__all__ = ["EventLoopError"]


class EventLoopError(GlideMQError, RuntimeError):
    """An object was used outside the event loop it belongs to; nothing was sent.

    Attributes:
        subject: the object, such as ``worker of queue 'emails'``.
        problem: what is wrong.
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
