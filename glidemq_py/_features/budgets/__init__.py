"""Budgets: limits on the tokens and costs of the jobs of a flow."""
