"""Webhooks: events of queues, posted to URLs that clients have registered."""
