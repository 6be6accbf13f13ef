"""Figures per job name and minute: how many attempts ended how, and how long jobs waited and ran."""
