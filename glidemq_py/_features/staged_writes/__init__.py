"""Staged writes: rows put down by many processes that become jobs together or not at all."""
