"""Django's admin site with pages of queues and failed jobs: an application for ``INSTALLED_APPS``."""

from __future__ import annotations

try:
    import django as _django
except ImportError as error:
    raise ImportError("glidemq_py.integrations.django_admin requires Django: pip install django") from error

__all__: list[str] = []

del _django
