"""Integrations with libraries of others, one module each: `sentry`, `structlog`, `fastapi`, `sqlalchemy`.

Each module needs its library, which no extra installs: you have it already, or do not need the module.
"""
