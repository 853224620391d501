"""What is public in entangle-jax 0.1.1 works here as it does there, but for what docs/differences.md says.

ENTANGLE_PUBLISHED names the interpreter of an environment with the published package, and the same jax as in this one.
"""

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from programs import PROGRAMS

PAGE = Path(__file__).parents[2] / "docs" / "differences.md"
PUBLISHED = os.environ.get("ENTANGLE_PUBLISHED")


def documented():
    """`{program: (outcome with 0.1.1, outcome here)}`, from the table."""
    rows = re.findall(r"^\| `(\w+)` \| `(.*?)` \| `(.*?)` \|", PAGE.read_text(), re.MULTILINE)
    return {program: (published, ours) for program, published, ours in rows}


@functools.cache
def outcomes(interpreter):
    here = Path(__file__).parent
    # The code runs apart from the checkout, so that it imports what is installed.
    output = subprocess.run([interpreter, "-P", here / "programs.py"], check=True, capture_output=True, cwd=here.root)
    return json.loads(output.stdout)


def run(interpreter, code):
    return subprocess.run([interpreter, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(autouse=True, scope="module")
def _published():
    assert PUBLISHED, (
        "set ENTANGLE_PUBLISHED to the interpreter of an environment with entangle-jax 0.1.1 (see ci/clients)"
    )
    versions = "from importlib.metadata import version; print(version('entangle-jax'), version('jax'))"
    assert run(PUBLISHED, versions) == f"0.1.1 {jax.__version__}"
    public = "import entangle_jax; print(*entangle_jax.__all__)"
    assert run(PUBLISHED, public) == "entangle", "something else is public there: programs for it are wanted here"


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_gives_what_it_gave_or_what_is_documented(program):
    published, ours = outcomes(PUBLISHED)[program], outcomes(sys.executable)[program]
    if program in documented():
        assert (published, ours) == documented()[program]
        assert published != ours
    else:
        assert published == ours
        assert "Error" not in ours


def test_every_documented_difference_has_its_program():
    assert set(documented()) <= set(PROGRAMS)
    assert len(documented()) > 10
