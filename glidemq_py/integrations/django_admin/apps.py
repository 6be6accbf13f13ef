"""The application's configuration, which Django finds."""

# Django has no annotations.
# pyright: reportUnknownMemberType=false, reportUntypedBaseClass=false

from __future__ import annotations

from django.apps import AppConfig

__all__ = ["QueuesConfig"]


class QueuesConfig(AppConfig):  # type: ignore[misc, unused-ignore]
    """The application ``glidemq``, which has no table."""

    name = "glidemq_py.integrations.django_admin"
    label = "glidemq"
    verbose_name = "Job queues"
    default_auto_field = "django.db.models.AutoField"  # pyright: ignore[reportAssignmentType]
