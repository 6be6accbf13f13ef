"""Suspending a job until a signal arrives or a timeout expires."""
