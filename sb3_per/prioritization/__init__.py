"""Which slots are sampled, how often, and with what weight: NumPy and numba only."""
