"""Usage: tokens and money that jobs report, of a job, a flow, or queues over time."""
