"""What the servers of this package share that speak HTTP: checks of requests, and uvicorn with limits."""
