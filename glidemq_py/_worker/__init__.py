"""The worker: fetches jobs, runs handlers, reports results."""
