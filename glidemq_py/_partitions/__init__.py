"""Queues whose jobs are spread over several partitions."""
