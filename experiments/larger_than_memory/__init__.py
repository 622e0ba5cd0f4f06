"""Tables from 1e5 to 2e7 rows: time and memory of fits in memory, in blocks on disk, with workers of Ray."""
