"""`python -m glidemq_py.worker`: workers from the shell, one duty a file.

arguments.py reads the command line, target.py finds the workers in the user's module, child.py runs them in this
process (limits.py: until it is to be replaced), supervisor.py keeps several such processes alive (line.py: how the
two talk), health.py answers a probe. Nothing else of the package imports from here.
"""
