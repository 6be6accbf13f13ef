"""The gateway compared with bunqueue: ``python -m tests.bench.gateway``."""
