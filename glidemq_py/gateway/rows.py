"""Rows of jobs to add. Options that were checked and encoded before are not checked and encoded again.

The clients of a queue usually add their jobs with the same options, and only the ids differ.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from glidemq_py._api.bulk import spec_of
from glidemq_py._api.job_queue import Queue
from glidemq_py._core.calls.adding import Row, encode_row, stored_row
from glidemq_py._core.job_options import NO_OPTIONS, JobOptions
from glidemq_py._core.payload import encode_data
from glidemq_py._core.rows import FIELDS
from glidemq_py._job.link import QueueLink
from glidemq_py.gateway.pushing import Push

__all__ = ["row_of"]

_KEPT: Final = 500
_NAME, _DATA, _OPTS, _ID = (FIELDS["new_job"].index(name) for name in ("name", "data", "opts", "id"))
_SAMPLE: Final = "00000000-0000-7000-8000-000000000000"
_VARIED: Final = ("deduplication", "fair_key", "depends_on", "tags")
"""Options that usually differ from job to job."""


class _Template(NamedTuple):
    options: JobOptions
    row: Row
    before_id: str
    after_id: str


_templates: dict[str, _Template] = {}


def row_of(
    queue: Queue[Any, Any], link: QueueLink, push: Push, position: int | None = None
) -> tuple[Row, JobOptions]:  # fmt: skip
    """Return the row of a job, and its options, which need not contain its id.

    Args:
        queue: The queue.
        link: Its connection.
        push: The job.
        position: Its position among several, for errors.

    Raises:
        GlideMQValidationError: If an option or the data is invalid.
    """
    name, data, given = push
    job_id = given.get("job_id")
    if name not in queue._known_names:
        queue._check_name(name)
    where = "data" if position is None else f"jobs[{position}].data"
    if type(job_id) is not str or len(job_id) != len(_SAMPLE) or not job_id.replace("-", "").isalnum():
        return _new_row(queue, link, push, position, where)
    if any(option in given for option in _VARIED):
        return _new_row(queue, link, push, position, where)
    shared = {**given, "job_id": _SAMPLE}
    key = repr(shared)
    found = _templates.get(key)
    if found is None:
        found = _make(queue, (name, data, shared), position)
        if len(_templates) >= _KEPT:
            _templates.clear()
        _templates[key] = found
    row = found.row.copy()
    row[_NAME], row[_ID] = name, job_id
    row[_DATA] = encode_data(data, link.serializer, link.compression, link.payload_limit, where)
    row[_OPTS] = f"{found.before_id}{job_id}{found.after_id}"
    return row, found.options


def _options(queue: Queue[Any, Any], push: Push, position: int | None) -> JobOptions:
    if position is None:
        return queue._options(push[2])
    return spec_of(push, position, NO_OPTIONS)[2]


def _new_row(
    queue: Queue[Any, Any], link: QueueLink, push: Push, position: int | None, where: str
) -> tuple[Row, JobOptions]:  # fmt: skip
    options = _options(queue, push, position)
    return encode_row(link, push[0], push[1], options, where), options


def _make(queue: Queue[Any, Any], push: Push, position: int | None) -> _Template:
    options = _options(queue, push, position)
    before, _, after = options.to_wire_json().partition(_SAMPLE)
    return _Template(options, stored_row("", "", "", options), before, after)
