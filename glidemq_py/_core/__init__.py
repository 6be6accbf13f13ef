"""Values and the calls of plain jobs: options, records, keys, codecs. Pure functions; nothing here does I/O."""
