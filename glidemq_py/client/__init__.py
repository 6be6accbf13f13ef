"""The I/O rim: transports over GLIDE, the loader of the function library, the embedded server.

Everything that talks to a server is here and nothing that knows what a queue does.
"""
