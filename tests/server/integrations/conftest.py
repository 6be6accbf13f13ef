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
        SECRET_KEY="of the tests",
        INSTALLED_APPS=[
            "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions",
            "django.contrib.messages", "django.contrib.staticfiles", "glidemq_py.integrations.django_admin",
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware", "django.middleware.csrf.CsrfViewMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
        ],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
                "OPTIONS": {
                    "context_processors": [
                        "django.template.context_processors.request", "django.contrib.auth.context_processors.auth",
                        "django.contrib.messages.context_processors.messages",
                    ]
                },
            }
        ],
        ROOT_URLCONF="tests.server.integrations.django_urls",
        STATIC_URL="/static/",
        ALLOWED_HOSTS=["*"],
    )  # fmt: skip
    django.setup()
    return folder
