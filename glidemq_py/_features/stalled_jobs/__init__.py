"""Stalled jobs: the policy of a queue."""
