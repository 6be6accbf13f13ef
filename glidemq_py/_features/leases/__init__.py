"""Leases: jobs that are fetched and reported without a worker (docs/learn/leases.md)."""
