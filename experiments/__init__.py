"""A folder a paper: its protocol, its numbers, and ours beside them."""
