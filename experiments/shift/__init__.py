"""Public rows of another kind: do they cost anything?"""
