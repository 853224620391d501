"""Each dependence inside of `Handle`, and each rule about its use, is needed: without it a test fails that passes with it."""

import types
from pathlib import Path

import handle_checks
import pytest
from mutations import Mutation, assert_fails, assert_passes, replaced

from entangle_jax import _handle

SOURCE = Path(_handle.__file__).read_text()

MUTATIONS = {
    "a read leaves the fence as it is": ("fence = entangle(self.fence, result)", "fence = self.fence"),
    "a read holds back the next read": (
        "_made(self.token, fence,",
        "_made(entangle(self.token, result), fence,",
    ),
    "a read is given the fence": ("fn(self.token,", "fn(self.fence,"),
    "a write does not wait for reads": ("fn(self.fence,", "fn(self.token,"),
    "nothing waits for a write": ("new, fence = entangle(both, result)", "new, fence = both"),
    "reads do not wait for a write": ("entangle(both, result)", "(both[0], entangle(both[1], result))"),
    "writes do not wait for a write": ("entangle(both, result)", "(entangle(both[0], result), both[1])"),
    "what waits does not wait for reads": ("return self.fence", "return self.token"),
    "reads of joined objects wait for one object": ("entangle(tokens, tokens)", "tokens"),
    "writes of joined objects wait for one object": ("entangle(fences, fences)", "fences"),
    "joined objects keep no fence": ("entangle(fences, fences)", "entangle(tokens, tokens)"),
    "joined objects hold back reads": ("entangle(tokens, tokens)", "entangle(tokens, fences)"),
    "split objects forget reads": ("fences: Any = self.fence", "fences: Any = _copies(self.token)"),
    "a new handle holds its token twice": ("_copies(token), _copies(fence), None", "_copies(token), fence, None"),
    "a new handle holds the caller's token": ("_copies(token), _copies(fence), None", "token, _copies(fence), None"),
    "a new token is held twice": (
        "return _copies(new), _copies(new)",
        "new = _copies(new); return new, new",
    ),
    "joined reads hold one token twice": ("_copies(entangle(tokens, tokens))", "entangle(tokens, tokens)"),
    "reads do not wait for a value": ("_made(entangle(self.token, *values), ", "_made(self.token, "),
    "writes do not wait for a value": ("entangle(self.fence, *values), past", "self.fence, past"),
    "a value holds back reads": (
        "_made(entangle(self.token, *values), entangle(self.fence, *values), ",
        "_made(*entangle((self.token, self.fence), *values), ",
    ),
}


def mutated(*edits):
    source = SOURCE
    for old, new in edits:
        source = replaced("_handle.py", source, old, new)
    module = types.ModuleType(_handle.__name__)
    module.__file__ = _handle.__file__
    exec(compile(source, _handle.__file__, "exec"), module.__dict__)
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
    assert first_failure(mutated(MUTATIONS[mutation]), handle_checks.CHECKS)


def test_with_all_of_them_no_check_fails():
    assert first_failure(mutated(), handle_checks.CHECKS) is None


MISUSE = "test_handle_misuse.py::"
RULES = {
    "a Ref orders nothing": Mutation(
        ["test_tokens_and_refs.py::test_a_write_does_not_overtake_the_call_whose_result_is_in_a_ref[inside-plainly]"],
        ("_leaves.py", "return leaf[...] if is_ref(leaf) else _unwrapped(leaf)", "return 1 if is_ref(leaf) else leaf"),
    ),
    "a call whose result is in a Ref counts as one without a result": Mutation(
        ["test_tokens_and_refs.py::test_a_write_does_not_overtake_a_read_that_returns_a_ref"],
        ("_handle.py", " or is_ref(leaf) for leaf", " for leaf"),
    ),
    "a Ref is taken as payload": Mutation(
        ["test_tokens_and_refs.py::test_a_ref_as_payload_is_told_to_be_read_first"],
        (
            "_leaves.py",
            "leaves = [_unwrapped(leaf) for leaf in leaves]",
            "leaves = [value_of_witness(leaf) for leaf in leaves]",
        ),
    ),
    "an alarm where there is nothing to order": Mutation(
        ["test_warnings.py::test_no_false_alarm_where_no_leaf_has_elements"],
        ("_leaves.py", "is_waited_for)]))", "is_waited_for), 1]))"),
    ),
    "an alarm where nothing is waited for": Mutation(
        ["test_warnings.py::test_no_false_alarm"], ("_leaves.py", "if not any(is_waited_for) or ", "if ")
    ),
    "handles in a token are taken for arrays": Mutation(
        [MISUSE + "test_arguments_that_cannot_be_are_named"],
        ("_handle.py", "        if isinstance(leaf, Handle):\n", "        if False:\n"),
    ),
    "half of a handle is changed": Mutation(
        [MISUSE + "test_a_handle_is_not_changed_in_part"],
        ("_handle.py", "class Handle(", "import dataclasses\n@dataclasses.dataclass(init=False)\nclass Handle("),
        ("_handle.py", "    _token: T\n", "    token: T\n"),
        ("_handle.py", "    _fence: T\n", "    fence: T\n"),
        ("_handle.py", "    _past: Past | None\n", ""),
    ),
    "iterations write in any order": Mutation(
        [MISUSE + "test_iterations_that_write_through_a_handle_from_outside_are_reported[scan-write_it-eager]"],
        ("_handle.py", '        past.check_loop("write")\n', ""),
    ),
    "a read in the body hides where the handle is from": Mutation(
        [MISUSE + "test_iterations_that_write_through_a_handle_from_outside_are_reported[scan-read_it_first-eager]"],
        (
            "_past.py",
            "return _Seen(of, self.origin, self.write, [access])",
            "return _Seen(of, None, self.write, [access])",
        ),
        (
            "_past.py",
            "    if origin is not None:\n        if origin()",
            "    if True:\n        if origin is None or origin()",
        ),
    ),
    "a branch in the body hides where the handle is from": Mutation(
        [MISUSE + "test_a_branch_that_writes_through_a_handle_that_the_body_read_through_is_reported"],
        ("_past.py", "origins[0] if len(origins) == 1 else _origin(token)", "_origin(token)"),
    ),
    "an alarm for a handle that is carried": Mutation(
        [MISUSE + "test_a_handle_that_is_carried_is_not_reported[scan-write_it-eager]"],
        ("_past.py", "traces = traces[traces.index(origin()) + 1 :]", "pass"),
    ),
    "an alarm for two reads that are joined": Mutation(
        [MISUSE + "test_what_is_no_mistake_is_not_reported[two_reads_joined]"],
        ("_past.py", "frozenset().union(*(each.reads for each in same))", "self.reads"),
    ),
    "an alarm for an old handle that is joined with a new one": Mutation(
        [MISUSE + "test_what_is_no_mistake_is_not_reported[an_old_handle_joined_with_a_new_one]"],
        (
            "_past.py",
            "self.of.write if any(each.write is self.of.write for each in same) else self.write",
            "self.write",
        ),
    ),
    "a read that is forgotten is forgotten here too": Mutation(
        [MISUSE + "test_a_handle_that_is_used_twice_is_reported_with_both_places[read_then_write-eager]"],
        ("_past.py", "of.forgotten = place", "pass"),
    ),
    "a handle is no array, and JAX says something else": Mutation(
        [MISUSE + "test_a_handle_where_an_array_is_wanted_is_told_of_its_token[eager-ffi_call]"],
        ("_handle.py", "def __jax_array__(", "def jax_array("),
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_without_this_rule_a_test_fails(rule, tmp_path):
    assert_fails(RULES[rule], tmp_path)


def test_with_all_rules_no_test_fails(tmp_path):
    assert_passes(RULES.values(), tmp_path)
