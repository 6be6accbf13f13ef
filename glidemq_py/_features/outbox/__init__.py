"""The outbox: entries for other queues, stored in the same step as the change that causes them, delivered later."""
