"""Vector search: embeddings of jobs, and similarity search over them."""
