"""Typed tasks: the signature of a function describes the data of its jobs."""
