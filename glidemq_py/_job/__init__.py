"""The `Job` class and its parts. Queues and workers create jobs; this package imports neither of them."""
