"""One version and one date, everywhere they are written."""

import re
import tomllib
from pathlib import Path

import continual_segment

ROOT = Path(__file__).parents[1]
VERSION = continual_segment.__version__


def test_package_project_and_citation_have_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_newest_release_in_the_changelog_is_this_version_on_the_date_of_the_citation():
    version, date = re.findall(r"^## (\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert version == VERSION
    assert f"\ndate-released: {date}\n" in (ROOT / "CITATION.cff").read_text()


def test_every_file_of_the_package_that_is_no_module_is_installed():
    """A file that no pattern names would be missing from the wheel, where no test looks for it."""
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    package = ROOT / "src" / "continual_segment"
    patterns = setuptools["package-data"]["continual_segment"]
    named = {path for pattern in patterns for path in package.glob(pattern)}
    data = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert data - named == set()
