"""What stands in the pages: the README and docs/. Its code is taken from them, here alone, to be run by the tests.

The first line of a block says what becomes of it:

    ```python                       part of the page's program: all of them run from top to bottom in one namespace
    ```python title="train.py"      a file of a project that is built from the page: `python/tests_site` does that
    ```rust title="crates/a.rs"     a part of that file of the repository
    ```sh                           commands of such a project
    ```text title="prints"          what the block before it prints
    ```text title="prints, among other lines"
    ```text title="prints, from step.py"      what it prints as a file of that name; long lines are broken
"""

import re
import textwrap
from pathlib import Path
from typing import NamedTuple

# A checkout, or a copy of the tests that brings the pages along.
ROOT = next((folder for folder in Path(__file__).parents if (folder / "README.md").exists()), None)
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")]) if ROOT else []

_BLOCK = re.compile(
    r'^(?P<indent> *)```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?(?P<rest>[^\n]*)\n(?P<body>.*?)^(?P=indent)```$',
    re.DOTALL | re.MULTILINE,
)
_HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    title: str
    body: str
    line: int
    """The number of lines before its first one."""
    heading: str
    """The heading above it."""


def blocks_of(page: Path) -> list[Block]:
    """The page's blocks, in their order."""
    text = page.read_text(encoding="utf-8")
    blocks = []
    for block in _BLOCK.finditer(text):
        assert not block["rest"], f"{page.name}: what is meant by `{block['rest']}` behind ```{block['language']}?"
        # A `#` at the start of a line of code is a comment, no heading.
        headings = [heading["title"] for heading in _HEADING.finditer(prose_of(text[: block.start()]))]
        line = text[: block.start("body")].count("\n")
        body = textwrap.dedent(block["body"])
        blocks.append(Block(block["language"], block["title"] or "", body, line, headings[-1] if headings else ""))
    return blocks


def prose_of(text: str) -> str:
    """The text without its blocks."""
    return _BLOCK.sub("", text)


def of_a_project(block: Block) -> bool:
    """Whether it is a file or a command of a project that is built from the page."""
    return block.language == "sh" or (
        bool(block.title) and "/" not in block.title and not block.title.startswith("prints")
    )


def printed(blocks: list[Block], i: int) -> Block | None:
    """The block that shows what block `i` prints, if there is one."""
    following = blocks[i + 1] if i + 1 < len(blocks) else None
    return following if following and following.title.startswith("prints") else None


def shows(block: Block, output: str) -> bool:
    """Whether such a block shows what was printed."""
    if block.title == "prints, among other lines":
        return set(block.body.splitlines()) <= set(output.splitlines())
    if file_of(block):
        return block.body.split() == output.split()
    assert block.title == "prints", block.title
    return block.body == output


def file_of(block: Block | None) -> str | None:
    """The name under which the block before this one is run, to print what this one shows."""
    name = re.fullmatch(r"prints, from (\w+\.py)", block.title) if block else None
    return name and name[1]
