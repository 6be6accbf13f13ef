"""Staged writes: rows staged by many processes that become jobs atomically, all or none."""
