"""Broadcasts (publish/subscribe): messages with subjects, delivered to every subscription."""
