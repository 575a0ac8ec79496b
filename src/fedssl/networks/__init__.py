"""Backbones and the heads that stand on them."""
