"""Faults put into a copy of the project, to see whether the tests find them: `python -m tests.faults`."""
