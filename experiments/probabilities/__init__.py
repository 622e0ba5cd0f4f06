"""Are probabilities true? See `__main__`."""
