"""Figures 1 to 3 of Chen, Lee & Kifer, "Rényi Differentially Private ERM for Smooth Objectives" (2019)."""
