"""Vectors of jobs and similarity search over them."""
