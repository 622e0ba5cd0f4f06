"""`python -m sidelight` is the command `sidelight`."""

from __future__ import annotations

import sys

from sidelight.cli import main

if __name__ == "__main__":
    sys.exit(main())
