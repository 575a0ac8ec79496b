"""Augmented views of a batch of images."""
