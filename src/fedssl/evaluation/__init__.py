"""How good the features are: labels are used here and nowhere else."""
