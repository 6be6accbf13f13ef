"""Server calls of plain jobs, each declared once: the function's name, its packed argument, its decoded reply."""
