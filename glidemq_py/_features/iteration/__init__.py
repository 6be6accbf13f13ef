"""Handlers that process many items, store how far they are, and continue there after a deploy or a failure."""
