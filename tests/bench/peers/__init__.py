"""One driver per measured library; each runs as a process of its own and speaks `protocol` on its stdout.

A driver only calls its library: `protocol` defines the measurements, `tests.bench.measure` when and how often they run.
A driver may import its own library, `protocol`, and no other driver.
"""
