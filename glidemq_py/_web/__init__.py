"""Parts that all HTTP servers of this package share: checks of requests, and uvicorn with limits."""
