"""Figures 1 to 3 of "Rényi Differentially Private ERM for Smooth Objectives" (Chen, Lee & Kifer, AISTATS 2019)."""
