"""`python -m glidemq_py.worker`: runs workers from the command line.

arguments.py parses the command line, target.py loads the workers from the user's module, child.py runs them in this
process, supervisor.py starts and restarts several such processes, health.py implements `--check`. No other part of the
package imports from here.
"""
