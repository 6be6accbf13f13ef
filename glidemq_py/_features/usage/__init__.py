"""Usage that jobs report (tokens and costs): per job, per flow, and per queue and minute."""
