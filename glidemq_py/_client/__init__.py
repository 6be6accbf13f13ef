"""Connections: transports over GLIDE, the library loader, the embedded server, and the in-memory server."""
