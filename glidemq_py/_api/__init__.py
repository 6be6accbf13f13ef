"""The public client classes: Queue, Producer, FlowProducer, QueueEvents, Scheduler."""
