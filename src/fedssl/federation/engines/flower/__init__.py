"""Clients behind a Flower grid, simulated or at their own sites."""
