"""A job queue for Python over Valkey."""
