"""Builds a project from the pages of the site alone: their files, commands and nothing else, in their order.

    python key_value_store.py WHEEL

Each project is made in an empty folder, with an environment that holds nothing but Python. A block with a title is the file
of that name; an `sh` block is run; what `text title="prints"` shows is what came out. `pip` is uv under that name, which
is quicker, and finds WHEEL as if it were on the registry.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import pages

# Told to refresh, or it takes a wheel of the same version that it has seen before.
PIP = """#!/bin/sh
exec uv --quiet pip "$@" --refresh-package entangle-jax
"""


def build(page, headings):
    """Follow the blocks of `page` that stand under one of `headings`."""
    wheel = Path(sys.argv[1]).resolve()
    blocks = pages.blocks_of(pages.ROOT / "docs" / page)
    parts = {block.heading for block in blocks if pages.of_a_project(block)}
    assert parts == set(headings), f"the project is under {parts} in {page}, and {set(headings)} is built"
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder), wheel)
        for i, block in enumerate(blocks):
            if block.heading in headings:
                project.follow(block, pages.printed(blocks, i))
    print(f"{page}: built as it says, {project.commands} commands and {project.files} files")


class Project:
    """An empty folder and an empty environment."""

    def __init__(self, folder, wheel):
        self.folder = folder / "project"
        self.folder.mkdir()
        self.files = self.commands = 0
        environment = folder / "environment"
        subprocess.run(["uv", "venv", "--quiet", "--no-project", "--python", sys.executable, environment], check=True)
        programs = environment / "bin"
        (programs / "pip").write_text(PIP)
        (programs / "pip").chmod(0o755)
        self.variables = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "JAX", "XLA"))},
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "VIRTUAL_ENV": str(environment),
            "UV_FIND_LINKS": str(wheel.parent),
        }

    def follow(self, block, expected):
        """Do what the page does in this block."""
        if block.title and not block.title.startswith("prints"):
            path = self.folder / block.title
            assert not path.exists() or path.suffix == ".py", f"{block.title} is there already"
            path.write_text(block.body)
            self.files += 1
        elif block.language == "sh":
            self.commands += 1
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.body],
                cwd=self.folder,
                env=self.variables,
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )
            if done.returncode:
                raise SystemExit(f"{block.body}{done.stdout}ended with status {done.returncode} (line {block.line})")
            if expected and not pages.shows(expected, done.stdout):
                raise SystemExit(
                    f"{block.body}printed\n{done.stdout}and the page says\n{expected.body}(line {block.line})"
                )
