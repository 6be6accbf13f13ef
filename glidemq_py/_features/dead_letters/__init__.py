"""Dead letter queues: failed jobs are copied to another queue."""
