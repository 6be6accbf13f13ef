"""Streams of a job: chunks that a handler appends while it runs."""
