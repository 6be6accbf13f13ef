"""Streams of jobs: chunks that a handler writes and others read while it runs."""
