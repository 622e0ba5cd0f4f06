"""Table 3 of the Coupling paper, MNIST row."""
