"""Timelines: every change of a job's state, with time and worker."""
