"""Budgets of flows: limits on the tokens and money that the jobs of a flow may use."""
