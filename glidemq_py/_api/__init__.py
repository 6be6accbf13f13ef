"""The public classes: Queue, Producer, FlowProducer, QueueEvents, Scheduler."""
