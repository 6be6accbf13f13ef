"""Broadcasts: messages by subject, each of which every subscription gets."""

from glidemq_py.broadcast.broadcast import Broadcast
from glidemq_py.broadcast.message import Message
from glidemq_py.broadcast.progress import Delivery, Subscription
from glidemq_py.broadcast.subjects import compile_subject_matcher, match_subject
from glidemq_py.broadcast.worker import BroadcastWorker

__all__ = [
    "Broadcast", "BroadcastWorker", "Delivery", "Message", "Subscription", "compile_subject_matcher", "match_subject",
]  # fmt: skip
