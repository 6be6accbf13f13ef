"""Parts of the demo without queues: measuring source code, drawing on the terminal."""
