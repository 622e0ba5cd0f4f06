"""Speed and memory against a peer or a limit, in one run. Never asserted in a test."""
