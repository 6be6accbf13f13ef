"""Job streams: chunks that a handler appends while it runs."""
