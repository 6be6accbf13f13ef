"""A model without a table: it gives the pages a place on the admin site, and their permissions."""

# Django has no annotations.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUntypedBaseClass=false

from __future__ import annotations

from typing import Final

from django.db import models

__all__ = ["Queue"]


class Queue(models.Model):  # type: ignore[misc, unused-ignore]
    """A queue. Its permissions are ``glidemq.view_queue``, ``change_queue`` (retry) and ``delete_queue`` (delete)."""

    name = models.CharField(max_length=256, primary_key=True)

    class Meta:
        """No table is created."""

        managed = False
        default_permissions: Final = ("view", "change", "delete")
        verbose_name = "queue"
        verbose_name_plural = "queues"
