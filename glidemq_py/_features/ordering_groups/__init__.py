"""Ordering groups: jobs with the same key run in order, or with limited concurrency."""
