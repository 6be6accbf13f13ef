"""`Broadcast` for code that blocks.

Written by ``python -m tests.twins``; do not edit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic, Self, Unpack, cast

from typing_extensions import TypeVar

from glidemq_py._client.connect import BlockingConnection
from glidemq_py._client.runtime import run_immediately
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.queue_options import DEFAULT_PREFIX, Compression, JobSpec, Serializer, SerializerName
from glidemq_py._core.times import Milliseconds
from glidemq_py._features.broadcast.options import PublishOptionsDict
from glidemq_py._features.broadcast.progress import Delivery, Subscription
from glidemq_py._features.dead_letters.options import DeadLetterInput
from glidemq_py._job import BlockingJob as Job
from glidemq_py.sync.driving import BroadcastCore, twins_of

__all__ = ["Broadcast"]

DataT = TypeVar("DataT", default=Any)


class Broadcast(Generic[DataT]):
    """Publishes messages of which every subscription gets each; any number of threads may share one.

    Names, arguments and errors are those of `glidemq_py.Broadcast`. A client of your own is one of valkey-glide-sync.
    """

    def __init__(
        self,
        name: str,
        connection: BlockingConnection = None,
        *,
        max_messages: int | None = None,
        max_age: Milliseconds | None = None,
        prefix: str = DEFAULT_PREFIX,
        default_job_options: JobOptions | Mapping[str, Any] | None = None,
        compression: Compression = "none",
        serializer: Serializer | SerializerName | None = None,
        dead_letter_queue: DeadLetterInput = None,
        events: bool = True,
    ) -> None:
        self._core: BroadcastCore[DataT] = BroadcastCore(
            name,
            cast("Any", connection),
            max_messages=max_messages,
            max_age=max_age,
            prefix=prefix,
            default_job_options=default_job_options,
            compression=compression,
            serializer=serializer,
            dead_letter_queue=dead_letter_queue,
            events=events,
        )

    def publish(self, subject: str, data: DataT | None = None, **options: Unpack[PublishOptionsDict]) -> str | None:
        """Publish a message. See `Broadcast.publish`."""
        return run_immediately(self._core.publish(subject, data, **options))

    def publish_bulk(
        self, messages: Iterable[JobSpec | tuple[str] | tuple[str, Any] | tuple[str, Any, Mapping[str, Any] | None]]
    ) -> list[str | None]:
        """Publish many: ``(subject, data, options)`` tuples or `JobSpec` objects, in chunks that are atomic each.
        See `Broadcast.publish_bulk`.
        """
        return run_immediately(self._core.publish_bulk(messages))

    def get_subscriptions(self) -> list[Subscription]:
        """Every subscription, and how far it is."""
        return run_immediately(self._core.get_subscriptions())

    def get_subscription(self, name: str) -> Subscription | None:
        """One subscription; None if there is none of that name."""
        return run_immediately(self._core.get_subscription(name))

    def get_delivery(self, message_id: str, subscription: str) -> Delivery | None:
        """What a subscription has made of a message; None if there is no such message. See
        `Broadcast.get_delivery`.
        """
        return run_immediately(self._core.get_delivery(message_id, subscription))

    def subscribe(self, name: str, start_from: str = "$") -> None:
        """Make a subscription before there is a worker for it; one that exists stays as it is. See
        `Broadcast.subscribe`.
        """
        run_immediately(self._core.subscribe(name, start_from))

    def remove_subscription(self, name: str, *, force: bool = False) -> bool:
        """Forget a subscription and how far it was; False if there was none. See `Broadcast.remove_subscription`."""
        return run_immediately(self._core.remove_subscription(name, force=force))

    def pause(self) -> None:
        """Hand out no more messages, to no subscription; what is running runs on. Idempotent."""
        run_immediately(self._core.pause())

    def resume(self) -> None:
        """Hand out messages again. Idempotent."""
        run_immediately(self._core.resume())

    def is_paused(self) -> bool:
        """True if it hands out no messages."""
        return run_immediately(self._core.is_paused())

    def set_global_rate_limit(self, max: int, duration: Milliseconds) -> None:
        """Let at most ``max`` messages be taken in a window of ``duration``, by all subscriptions together."""
        run_immediately(self._core.set_global_rate_limit(max, duration))

    def remove_global_rate_limit(self) -> None:
        """Let any number be taken."""
        run_immediately(self._core.remove_global_rate_limit())

    def close(self) -> None:
        """Send what is still to be sent, and close the connection if it is ours; idempotent."""
        run_immediately(self._core.close())

    def __enter__(self) -> Self:
        run_immediately(self._core.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def redeliver(self, message_id: str, subscription: str) -> None:
        """Have a message come once more to a subscription that has done with it, with all its attempts. See
        `Broadcast.redeliver`.
        """
        run_immediately(self._core.redeliver(message_id, subscription))

    def get_dead_letter_jobs(
        self, subscription: str | None = None, start: int = 0, end: int = -1
    ) -> list[Job[Any, Any]]:
        """Dead letters by position, oldest first; ``end`` inclusive, -1 = the last. See
        `Broadcast.get_dead_letter_jobs`.
        """
        return twins_of(run_immediately(self._core.get_dead_letter_jobs(subscription, start, end)))

    def replay_dead_letter_job(self, job_id: str, subscription: str | None = None) -> bool:
        """Have the message of a dead letter come once more to its subscription (`redeliver`), and delete the
        letter. See `Broadcast.replay_dead_letter_job`.
        """
        return run_immediately(self._core.replay_dead_letter_job(job_id, subscription))

    def remove_dead_letter_job(self, job_id: str, subscription: str | None = None) -> bool:
        """Delete a dead letter; False if there is none of that id. Arguments as for `replay_dead_letter_job`."""
        return run_immediately(self._core.remove_dead_letter_job(job_id, subscription))

    @property
    def name(self) -> str:
        """See `Broadcast`."""
        return self._core.name

    def __repr__(self) -> str:
        return repr(self._core)
