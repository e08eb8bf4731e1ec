"""The texts of the repository: links lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("results/*.md")})
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page):
    """As GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def leads_nowhere(page, link):
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page):
    links = [link for link in LINK.findall(page.read_text()) if not link.startswith("http")]
    assert [link for link in links if leads_nowhere(page, link)] == []


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= 600
