"""Differential privacy of clients: mechanism, accounting, budget."""
