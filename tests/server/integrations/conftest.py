"""Settings of Django, which a process can configure only once."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def django_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Set Django up with a database in a file; return the folder."""
    import django
    from django.conf import settings

    folder = tmp_path_factory.mktemp("django")
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "db.sqlite3")}},
        USE_TZ=True,
    )
    django.setup()
    return folder
