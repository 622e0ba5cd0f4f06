"""Table 9 of the DOPE-SGD paper, ε = 2, scaled down to one core and minutes."""
