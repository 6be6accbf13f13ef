"""Failures of a queue: failed attempts of a job, failed jobs by reason and name, the failure policy."""
