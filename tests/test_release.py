"""What is published is one version, with the bounds that are tested, and an install line that works."""

import importlib.util
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

import sidelight

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TAG, URL = f"v{PROJECT['version']}", "https://example.org/a/b"


def script() -> Any:
    spec = importlib.util.spec_from_file_location("prepare_release", ROOT / ".github/prepare_release.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


prepare = script()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in (*prepare.versions(ROOT), *prepare.PAGES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_every_file_has_the_same_version() -> None:
    assert set(prepare.versions(ROOT).values()) == {sidelight.__version__}


def test_a_release_installs_by_name_and_links_to_its_repository(checkout: Path) -> None:
    (checkout / "README.md").write_text("pip install '.[tables]'\npip install -e .\npip install ./other\n")
    prepare.prepare(checkout, TAG, URL)
    assert (checkout / "README.md").read_text() == (
        "pip install 'sidelight[tables]'\npip install sidelight\npip install ./other\n"
    )
    urls = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["urls"]
    assert urls["Issues"] == f"{URL}/issues"
    once = {name: (checkout / name).read_text() for name in ("README.md", "pyproject.toml")}
    prepare.prepare(checkout, TAG, URL)  # again, on main, after the tag
    assert once == {name: (checkout / name).read_text() for name in once}


def test_the_readme_has_the_line_that_a_release_switches(checkout: Path) -> None:
    prepare.prepare(checkout, TAG, URL)
    assert "pip install 'sidelight[" in (checkout / "README.md").read_text()


def test_a_tag_of_another_version_is_refused(checkout: Path) -> None:
    with pytest.raises(SystemExit, match="CITATION"):
        prepare.prepare(checkout, "v9.9.9", URL)


def bounds(requirements: list[str]) -> dict[str, str]:
    found = (re.match(r"([\w-]+)>=([\d.]+)", each) for each in requirements)
    return {match[1].lower(): match[2] for match in found if match}


def test_the_lowest_versions_that_are_tested_are_those_that_are_allowed() -> None:
    pins = dict(re.findall(r"^([\w-]+)==([\d.]+)$", (ROOT / "constraints-lowest.txt").read_text(), re.M))
    pins = {name.lower(): version for name, version in pins.items()}
    extras = PROJECT["optional-dependencies"]
    for name, bound in bounds(PROJECT["dependencies"] + extras["tables"] + extras["skops"]).items():
        assert pins[name].startswith(bound), f"{name}>={bound}, but {pins[name]} is tested"


def test_the_conda_recipe_asks_for_what_the_package_asks_for() -> None:
    recipe = pytest.importorskip("yaml").safe_load((ROOT / "conda/recipe.yaml").read_text())
    assert recipe["context"]["version"] == PROJECT["version"]
    run = {line.split()[0]: line.split()[1] for line in recipe["requirements"]["run"]}
    package = {re.split(r"[<>=]", each)[0]: each for each in PROJECT["dependencies"]}
    assert run.pop("python") == PROJECT["requires-python"]
    assert {name: name + bound for name, bound in run.items()} == package
