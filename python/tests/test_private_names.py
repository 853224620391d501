"""Private names of JAX stand in one file, each with its reason; one that disappears is a clear error."""

import inspect
import re
from pathlib import Path

import fresh
import jax
import pytest

from entangle_jax import _private

PACKAGE = Path(_private.__file__).parent
SOURCE = inspect.getsource(_private)
TAKEN = re.findall(r'_take\("([\w.]+)", "(\w+)"\)', SOURCE)


@pytest.mark.parametrize(("module", "name"), TAKEN, ids=[f"{module}.{name}" for module, name in TAKEN])
def test_this_jax_has_it(module, name):
    """Run against the newest jax, this is the test that says what is gone."""
    assert _private._take(module, name) is not None


def test_a_name_that_is_gone_is_an_error_that_says_what_to_do():
    wanted = rf"entangle-jax uses `jax\._src\.core\.gone`, which jax {re.escape(jax.__version__)} does not have.*install a newer"
    for module, name in (("jax._src.core", "gone"), ("jax._src.core.gone", "at_all")):
        with pytest.raises(ImportError, match=wanted if name == "gone" else "does not have"):
            _private._take(module, name)
    error = fresh.error("import jax._src.core\ndel jax._src.core.trace_state_clean\nimport entangle_jax")
    assert error.startswith("ImportError: entangle-jax uses `jax._src.core.trace_state_clean`, which jax ")


def test_they_are_nowhere_else():
    for file in PACKAGE.rglob("*.py"):
        if file.name != "_private.py":
            code = re.sub(r"#.*", "", file.read_text())
            assert not re.search(r"jax\._src|jaxlib\.(?!__version__)\w|import jaxlib\.\w|from jaxlib ", code), file.name


def test_each_has_its_reason_and_since_when():
    lines = SOURCE.splitlines()
    for i, line in enumerate(lines):
        if "_take(" in line and not line.startswith("def "):
            # Names that serve one purpose share its comment; a function that takes one says it in its docstring.
            above = i - 1
            while lines[above] and "_take(" in lines[above]:
                above -= 1
            comment = []
            if line.startswith(" "):
                start = max(j for j in range(i) if lines[j].startswith("def "))
                comment = lines[start:i]
            while lines[above].startswith("#"):
                comment.insert(0, lines[above])
                above -= 1
            assert re.search(r"since \d|until \d|There since", " ".join(comment)), line
