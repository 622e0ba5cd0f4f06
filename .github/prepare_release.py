"""Turn a checkout into what is published: the version of the tag, project URLs, and `pip install sidelight`.

    python .github/prepare_release.py v0.2.0 https://github.com/owner/repository

Until a release is published, README and docs say how to install from a clone: the name finds nothing before.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

GUIDES = ("index", "start", "tables", "text", "networks", "language", "federated")
PAGES = ("README.md", *(f"docs/{name}.md" for name in GUIDES))
# pip install '.[tables]' becomes pip install 'sidelight[tables]', and pip install -e . pip install sidelight.
FROM_CLONE = re.compile(
    r"""pip install (?:-e |--editable )?(?P<quote>['"]?)\.(?P<extras>\[[\w,-]+\])?(?P=quote)(?![\w/.])"""
)


def versions(root: Path) -> dict[str, str]:
    """The version as each file has it."""
    places = {
        "pyproject.toml": r'^version = "(.+)"$',
        "CITATION.cff": r"^version: (.+)$",
        "src/sidelight/__init__.py": r'^__version__ = "(.+)"$',
        "CHANGELOG.md": r"^## (\d\S*)",
    }
    found = {}
    for name, pattern in places.items():
        match = re.search(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)
        found[name] = "none" if match is None else match[1]
    return found


def published(text: str) -> str:
    """A page whose install line finds the published package."""

    def line(match: re.Match[str]) -> str:
        quote = match["quote"] or ("'" if match["extras"] else "")
        return f"pip install {quote}sidelight{match['extras'] or ''}{quote}"

    return FROM_CLONE.sub(line, text)


def with_urls(pyproject: str, url: str) -> str:
    """pyproject.toml with links to the repository that publishes it."""
    links = {
        "Homepage": url,
        "Documentation": f"{url}/tree/main/docs",
        "Changelog": f"{url}/blob/main/CHANGELOG.md",
        "Issues": f"{url}/issues",
        "Security": f"{url}/security/policy",
    }
    if "[project.urls]" in pyproject:
        return pyproject
    table = "\n".join(f'{name} = "{link}"' for name, link in links.items())
    return pyproject.replace("[project.scripts]", f"[project.urls]\n{table}\n\n[project.scripts]", 1)


def prepare(root: Path, tag: str, url: str) -> None:
    """Change the files of a checkout; refuse a tag that is not the version of every file."""
    wrong = {name: found for name, found in versions(root).items() if f"v{found}" != tag}
    if wrong:
        raise SystemExit(f"the tag is {tag}, but {', '.join(f'{n} has {v}' for n, v in wrong.items())}")
    project = root / "pyproject.toml"
    project.write_text(with_urls(project.read_text(encoding="utf-8"), url.rstrip("/")), encoding="utf-8")
    for name in PAGES:
        page = root / name
        page.write_text(published(page.read_text(encoding="utf-8")), encoding="utf-8")
    if "pip install 'sidelight" not in (root / "README.md").read_text(encoding="utf-8"):
        raise SystemExit("README.md has no line `pip install '.[tables]'` that a release could switch")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    prepare(Path(__file__).parents[1], *sys.argv[1:])
