"""Broadcasts: messages by subject, delivered to every subscription."""
