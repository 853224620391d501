"""Each dependence inside of `Handle` is needed: with any one of them removed, a check fails that passes otherwise."""

import types
from pathlib import Path

import handle_checks
import pytest

from entangle_jax import _handle

SOURCE = Path(_handle.__file__).read_text()

MUTATIONS = {
    "a read leaves the fence as it is": ("fence = entangle(self.fence, result)", "fence = self.fence"),
    "a read holds back the next read": ("Handle(self.token, fence)", "Handle(entangle(self.token, result), fence)"),
    "a read is given the fence": ("fn(self.token,", "fn(self.fence,"),
    "a write does not wait for reads": ("fn(self.fence,", "fn(self.token,"),
    "nothing waits for a write": ("both = entangle(both, result)", "pass"),
    "reads do not wait for a write": ("entangle(both, result)", "(both[0], entangle(both[1], result))"),
    "writes do not wait for a write": ("entangle(both, result)", "(entangle(both[0], result), both[1])"),
    "what waits does not wait for reads": ("return self.fence", "return self.token"),
    "reads of joined objects wait for one object": ("entangle(tokens, tokens)", "tokens"),
    "writes of joined objects wait for one object": ("entangle(fences, fences)", "fences"),
    "joined objects keep no fence": ("entangle(fences, fences)", "entangle(tokens, tokens)"),
    "joined objects hold back reads": ("entangle(tokens, tokens)", "entangle(tokens, fences)"),
    "split objects forget reads": ("Handle(token, fence) for", "Handle(token, jnp.copy(token)) for"),
    "a new handle holds its token twice": ('"fence", jax.tree.map(jnp.copy, self.token)', '"fence", self.token'),
    "a new token is held twice": ("return new, jax.tree.map(jnp.copy, new)", "return new, new"),
}


def mutated(old, new):
    assert SOURCE.count(old) == 1, f"`{old}` is in _handle.py {SOURCE.count(old)} times, wanted once: adapt this test"
    module = types.ModuleType(_handle.__name__)
    module.__file__ = _handle.__file__
    exec(compile(SOURCE.replace(old, new), _handle.__file__, "exec"), module.__dict__)
    return module.Handle


def first_failure(handle_class, checks):
    for check in checks:
        try:
            check(handle_class)
        except Exception as error:
            print(f"{check}: {error!r}"[:300])
            return error
    return None


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_without_this_dependence_a_check_fails(mutation):
    assert first_failure(mutated(*MUTATIONS[mutation]), handle_checks.CHECKS)


def test_with_all_of_them_no_check_fails():
    assert first_failure(mutated(SOURCE, SOURCE), handle_checks.CHECKS) is None
