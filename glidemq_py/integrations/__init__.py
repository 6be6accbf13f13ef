"""Integrations with libraries of others, one module each.

`fastapi`, `flask`, `django`, `django_tasks`, `jupyter`, `pydantic`, `sqlalchemy`, `sentry`, `structlog`. Each module
needs its library, which no extra installs: you have it already, or do not need the module.
"""
