"""WikiText-2 under differential privacy: the shapes of Tables 2, 6 and 12 of Nasr et al. (ICML 2023)."""
