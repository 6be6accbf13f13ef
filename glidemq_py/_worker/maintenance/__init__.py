"""Background tasks of a worker: stalled jobs, outbox, flows, unused libraries."""
