"""Remote control: commands to running workers, which read them with their heartbeats."""
