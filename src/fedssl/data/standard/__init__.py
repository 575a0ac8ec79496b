"""Datasets by name: CIFAR-10, CIFAR-100, synthetic images."""
