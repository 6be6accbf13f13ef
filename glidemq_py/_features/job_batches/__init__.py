"""Batches: sets of jobs, in any queues, with jobs that are added when all have ended."""
