"""Server calls for plain jobs. Each is declared once: function name, packed argument, decoded reply."""
