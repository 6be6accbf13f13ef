"""What goes over the wire, as pure functions: names, codecs, calls and replies; nothing here does I/O."""
