"""The benchmark room: measures glidemq_py and its peers on one server, in one run, and prints the ratios.

Nothing of the product may import it, and it may reach the product only as a user does (the public API).
Run it from the root of the repository: ``python -m tests.bench``.
"""
