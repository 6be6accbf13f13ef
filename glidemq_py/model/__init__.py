"""What a job and its states are, as values. Nothing here reaches a server or imports another room of ours."""
