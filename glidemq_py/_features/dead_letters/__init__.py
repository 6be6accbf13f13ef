"""Dead letters: jobs that failed for good, copied to another queue."""
