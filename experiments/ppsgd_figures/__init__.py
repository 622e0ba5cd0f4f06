"""Figures 2 and 3 of "Differentially Private Learning with Small Public Data" (Wang & Zhou, AAAI 2020)."""
