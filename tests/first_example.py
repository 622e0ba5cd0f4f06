"""python first_example.py README.md: run its first example as a new user would, in an empty folder.

`make wheel` calls it with an installed package and nothing else beside it.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path


def first_example(text: str) -> str:
    """The first block of Python on the page."""
    found = re.search(r"^```python\n(.*?)^```", text, re.M | re.S)
    if found is None:
        raise SystemExit("the page has no example")
    return found.group(1)


def main(page: Path) -> None:
    import sidelight

    if page.parent / "src" in Path(sidelight.__file__).parents:
        raise SystemExit(f"{sidelight.__file__} is the checkout, not an installed package")
    code = first_example(page.read_text())
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        exec(compile(code, str(page), "exec"), {"__name__": "example"})
        subprocess.run([Path(sys.executable).with_name("sidelight"), "--version"], check=True)
        os.chdir("/")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
