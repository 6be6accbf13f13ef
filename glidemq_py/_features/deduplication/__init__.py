"""Deduplication: unique jobs (``lua/features/deduplication``)."""
