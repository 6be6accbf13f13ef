"""Pages of the admin site: all queues, and the failed jobs of a queue with their actions."""

# Django has no annotations.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUntypedBaseClass=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, cast

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse

from glidemq_py.errors import GlideMQError, JobStateError
from glidemq_py.integrations.django import get_queue
from glidemq_py.integrations.django_admin.models import Queue
from glidemq_py.sync import Queue as BlockingQueue
from glidemq_py.sync import list_queues

__all__ = ["QueueAdmin"]

_SHOWN: Final = 200
_STATES: Final = ("waiting", "active", "delayed", "completed", "failed")


class _Failed(NamedTuple):
    """A failed job of the page."""

    id: str
    name: str
    reason: str
    error: str
    attempts: int
    at: datetime


@admin.register(Queue)
class QueueAdmin(admin.ModelAdmin):  # type: ignore[misc, unused-ignore]
    """Pages of queues: that of all of them, and one with the failed jobs of each."""

    def get_urls(self) -> list[Any]:
        """Return the addresses of the pages."""
        view = self.admin_site.admin_view
        return [
            path("", view(self.queues), name="glidemq_queue_changelist"),
            path("<path:name>/failed/", view(self.failed_jobs), name="glidemq_queue_failed"),
        ]

    def has_add_permission(self, request: Any, *_: Any) -> bool:
        """Return False: queues are not created here."""
        return False

    def queues(self, request: HttpRequest) -> HttpResponse:
        """List the queues with their jobs by state."""
        self._check(self.has_view_permission(request))
        rows: list[dict[str, Any]] = []
        problem = ""
        try:
            for name in _names():
                queue = get_queue(name)
                counts = queue.get_job_counts()
                row = {state: getattr(counts, state) for state in _STATES}
                rows.append({**row, "name": name, "paused": counts.paused, "workers": len(queue.get_workers())})
        except GlideMQError as error:
            problem = str(error)
        return self._page(request, "queues.html", {"title": "Queues", "rows": rows, "problem": problem})

    def failed_jobs(self, request: HttpRequest, name: str) -> HttpResponse:
        """List the failed jobs of a queue; a form retries or deletes them."""
        self._check(self.has_view_permission(request))
        if name not in _names():
            raise Http404(f"queue {name!r} does not exist")
        if str(request.method) == "POST":
            return self._act(request, name)
        reason = str(request.GET.get("reason", ""))
        found: list[_Failed] = []
        reasons: dict[str, int] = {}
        problem, kept = "", 0
        try:
            queue = get_queue(name)
            kept = queue.get_job_counts().failed
            failures = queue.failures.get_all(reason=reason or None, limit=_SHOWN)
            reasons = dict(Counter(str(each.reason) for each in failures))
            found = [
                _Failed(
                    each.job_id, each.name, str(each.reason),
                    f"{each.error_type}: {each.error}" if each.error_type else each.error, each.attempts_made,
                    datetime.fromtimestamp(each.failed_at / 1_000, UTC),
                )
                for each in failures
            ]  # fmt: skip
        except GlideMQError as error:
            problem = str(error)
        shown = {
            "title": f"Failed jobs of {name}", "name": name, "jobs": found, "kept": kept, "reason": reason,
            "reasons": reasons, "problem": problem, "may_retry": self.has_change_permission(request),
            "may_delete": self.has_delete_permission(request), "is_cut": len(found) == _SHOWN,
        }  # fmt: skip
        return self._page(request, "failed_jobs.html", shown)

    def _act(self, request: HttpRequest, name: str) -> HttpResponse:
        action = str(request.POST.get("action", ""))
        is_retry = action.startswith("retry")
        self._check(self.has_change_permission(request) if is_retry else self.has_delete_permission(request))
        ids = cast("list[str]", request.POST.getlist("id"))
        reason = str(request.POST.get("reason", "")) or None
        queue, is_all = get_queue(name), action.endswith("_all")
        here = f"{reverse('admin:glidemq_queue_failed', args=[name])}{f'?reason={reason}' if reason else ''}"
        if action not in ("retry", "delete", "retry_all", "delete_all"):
            raise Http404("unknown action")
        if not is_all and not ids:
            messages.warning(request, "Select at least one job.")
            return HttpResponseRedirect(here)
        if is_all and not request.POST.get("confirmed"):
            shown = {
                "title": "Are you sure?", "name": name, "action": action, "reason": reason or "", "back": here,
                "kept": queue.get_job_counts().failed,
            }  # fmt: skip
            return self._page(request, "confirm.html", shown)
        try:
            if is_all:
                done = (queue.failures.retry if is_retry else queue.failures.purge)(reason=reason)
                left: list[str] = []
            else:
                done, left = _change(queue, ids, _retry if is_retry else _delete)
        except GlideMQError as error:
            messages.error(request, str(error))
            return HttpResponseRedirect(here)
        text = f"{done:,} failed job{'' if done == 1 else 's'} {'to be retried' if is_retry else 'deleted'}"
        if done:
            self._record(request, name, CHANGE if is_retry else DELETION, text)
            messages.success(request, f"{text}.")
        for each in left[:5]:
            messages.warning(request, each)
        return HttpResponseRedirect(here)

    def _page(self, request: HttpRequest, template: str, shown: dict[str, Any]) -> HttpResponse:
        context = {**self.admin_site.each_context(request), "opts": self.opts, **shown}
        return cast("HttpResponse", TemplateResponse(request, f"glidemq_admin/{template}", context))

    def _check(self, is_allowed: bool) -> None:
        if not is_allowed:
            raise PermissionDenied

    def _record(self, request: Any, name: str, flag: int, text: str) -> None:
        """Add the change to the log of the admin site, which its index shows."""
        LogEntry.objects.create(
            user_id=request.user.pk, content_type_id=ContentType.objects.get_for_model(Queue).pk, object_id=name,
            object_repr=name, action_flag=flag, change_message=text,
        )  # fmt: skip


def _names() -> list[str]:
    """Return the queues of the setting ``GLIDEMQ``, and all others of the prefix."""
    found = cast("dict[str, Any]", getattr(settings, "GLIDEMQ", {}) or {})
    prefix: dict[str, Any] = {"prefix": found["PREFIX"]} if found.get("PREFIX") else {}
    listed = list_queues(found.get("CONNECTION"), **prefix)
    return sorted({*listed, *cast("dict[str, Any]", found.get("QUEUES") or {})})


def _change(
    queue: BlockingQueue[Any, Any], ids: Sequence[str], change: Callable[[BlockingQueue[Any, Any], str], bool]
) -> tuple[int, list[str]]:
    """Change these jobs; return how many, and why the others could not be changed."""
    done, left = 0, list[str]()
    for job_id in ids:
        try:
            if change(queue, job_id):
                done += 1
            else:
                left.append(f"Job {job_id} does not exist.")
        except JobStateError as error:
            left.append(str(error))
    return done, left


def _retry(queue: BlockingQueue[Any, Any], job_id: str) -> bool:
    job = queue.get_job(job_id)
    if job is None:
        return False
    job.retry()
    return True


def _delete(queue: BlockingQueue[Any, Any], job_id: str) -> bool:
    return queue.remove(job_id, states="failed")
