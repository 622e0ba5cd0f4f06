"""Clipped sums of a linear model's gradients: the only code that reads private rows."""
