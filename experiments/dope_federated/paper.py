"""Table 7 of the DOPE-SGD paper: EMNIST, 70,000 users, a WideResNet; at ε = 0.5, 1, 2 and 4."""

PAPER = {
    "dp_sgd (all)": (82.2, 83.4, 85.0, 86.2),
    "dp_sgd (only private)": (83.1, 84.6, 85.5, 86.4),
    "dope_sgd": (84.7, 85.2, 86.0, 87.1),
}
