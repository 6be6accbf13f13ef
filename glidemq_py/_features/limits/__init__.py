"""Limits on the concurrency and rate of a queue and of its ordering groups."""
