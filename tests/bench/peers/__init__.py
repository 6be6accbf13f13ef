"""One driver per measured library; each runs as a process of its own and speaks `protocol` on its stdout.

A driver knows how to call its library and nothing else: what is measured and how is in `protocol`, when and
how often is in `tests.bench.measure`. A driver may import its own library, `protocol`, and no other driver.
"""
