"""Durable adds: an add returns only when its jobs survive a failure of the server (docs/operate/durability.md).

- options.py: the option ``durable`` of queues and adds.
- confirming.py: waits, on a connection of its own, until the server has confirmed adds.
- adding.py: adds jobs and waits for the confirmation.
- ``lua/features/durability``: marks of adds, which prove that a server still has them.
"""
