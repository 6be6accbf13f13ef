"""What the demo does besides using a queue: measuring source code, and drawing on the terminal."""
