"""Workers that serve several queues."""
