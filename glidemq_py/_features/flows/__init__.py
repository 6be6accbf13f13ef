"""Flows: jobs that wait for other jobs, added together as trees or graphs."""
