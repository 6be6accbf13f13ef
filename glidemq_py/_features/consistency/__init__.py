"""The consistency check: find inconsistent state in a queue and repair it."""
