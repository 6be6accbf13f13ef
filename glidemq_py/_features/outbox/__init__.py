"""The outbox: messages to other queues, written with the change that causes them and delivered afterwards."""
