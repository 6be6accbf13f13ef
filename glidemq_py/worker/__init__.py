"""`python -m glidemq_py.worker`: workers from the command line."""
