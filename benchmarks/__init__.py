"""Speed and memory, against peers, in one run."""
