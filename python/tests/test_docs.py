"""The Python code of the README and of docs/ runs as it stands, each page from top to bottom in one namespace."""

import re
import warnings
from pathlib import Path

import pytest

# Run from a checkout, or from a copy of the tests that brings the pages along.
ROOT = next((folder for folder in Path(__file__).parents if (folder / "README.md").exists()), None)
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")]) if ROOT else []


def code_of(page):
    """The page's Python blocks with the numbers of their first lines. A block that begins with `# not run` is prose."""
    text = page.read_text()
    blocks = re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [(text[: block.start(1)].count("\n"), block[1]) for block in blocks if not block[1].startswith("# not run")]


@pytest.mark.parametrize("page", [page for page in PAGES if code_of(page)], ids=lambda page: page.name)
def test_the_code_of_a_page_runs_and_its_assertions_hold(page, capsys):
    namespace = {"__name__": "__main__"}
    for line, code in code_of(page):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            exec(compile("\n" * line + code, str(page), "exec"), namespace)
    if page.name == "README.md":
        assert "['read', 'write', 'read']" in capsys.readouterr().out


def test_every_link_to_a_file_leads_somewhere():
    dead = [
        f"{page.name}: {target}"
        for page in [*PAGES, *ROOT.glob("*.md")]
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert not dead
