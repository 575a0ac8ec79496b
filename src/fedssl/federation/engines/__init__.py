"""Engines carry tasks to clients and bring back results; no algorithm lives here."""
