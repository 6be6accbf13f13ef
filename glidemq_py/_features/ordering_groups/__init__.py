"""Ordering groups: jobs of one key run in order, or a limited number at a time."""
