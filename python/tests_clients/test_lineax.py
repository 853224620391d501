"""lineax with a solver that keeps one factorisation, as direct solvers do: each solve has to find its own.

`lineax.linear_solve` calls its solver when it is lowered, so no jaxpr shows the call: the mark is `opaque`. Nothing else is
changed.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax
import numpy as np
import pytest
import scipy.linalg
from fixes import fix_of, mended

from entangle_jax import Handle, audit, calls, ordered, reads, testing, writes

RUNS = 5


class OneFactorisation(lineax.AbstractLinearSolver):
    """A solver on the host that holds the factorisation of one matrix: of the last one that it was given."""

    def init(self, operator, options):
        del options

        def factor(matrix):
            _HELD[:] = [scipy.linalg.lu_factor(matrix)]
            return np.int32(len(_HELD))

        return jax.pure_callback(factor, jax.ShapeDtypeStruct((), jnp.int32), operator.as_matrix())

    def compute(self, state, vector, options):
        del options

        def solve(_, vector):
            return scipy.linalg.lu_solve(_HELD[0], vector).astype(np.float32)

        solution = jax.pure_callback(solve, jax.ShapeDtypeStruct(vector.shape, vector.dtype), state, vector)
        return solution, lineax.RESULTS.successful, {}

    def transpose(self, state, options):
        raise NotImplementedError

    def conj(self, state, options):
        raise NotImplementedError

    def assume_full_rank(self):
        return True


_HELD = []


def solve(matrix, vector):
    return lineax.linear_solve(lineax.MatrixLinearOperator(matrix), vector, OneFactorisation()).value


def program_of(solve):
    def program(a, b, vector):
        """The first matrix is factorised again after the second one: to XLA that is the same call."""
        x = solve(a, vector)
        y = solve(b, x)
        return x, y, solve(a, y)

    return program


untied, marked = program_of(solve), program_of(writes("solver", opaque=True)(solve))


def wrong(program):
    rng = np.random.default_rng(0)
    a, b = (np.float32(rng.normal(size=(5, 5)) + 5 * np.eye(5)) for _ in range(2))
    vector = np.float32(rng.normal(size=5))
    x = np.linalg.solve(a, vector)
    y = np.linalg.solve(b, x)
    expected = x, y, np.linalg.solve(a, y)
    program = jax.jit(program)
    return sum(
        not all(np.allclose(*pair, rtol=1e-4) for pair in zip(program(a, b, vector), expected, strict=True))
        for _ in range(RUNS)
    )


@pytest.mark.parametrize("program", [untied, marked], ids=["untied", "marked alone"])
def test_a_solve_finds_the_factorisation_of_another_matrix(program, tally):
    assert tally("lineax", "untied" if program is untied else "marked alone", wrong(program), RUNS) == RUNS


def test_ordered_each_solve_finds_its_own(tally):
    assert tally("lineax", "ordered, marked", wrong(ordered(marked)), RUNS) == 0


SHAPES = [*[jax.ShapeDtypeStruct((5, 5), jnp.float32)] * 2, jax.ShapeDtypeStruct((5,), jnp.float32)]
CALLBACKS = {"writes": ["xla_ffi_python_cpu_callback"]}


@pytest.mark.parametrize(
    ("program", "targets", "fix"),
    [
        (untied, CALLBACKS, 'program = ordered(program, writes=["pure_callback", "linear_solve"])'),
        (marked, {}, "program = ordered(program)"),
    ],
    ids=["untied", "marked"],
)
def test_the_fix_that_is_printed_covers_the_solver_that_is_called_when_it_is_lowered(program, targets, fix):
    report = audit(program, *SHAPES, **targets)
    assert report.races
    assert fix_of(report) == fix
    audit(mended(report, program), *SHAPES, **targets).raise_if_races()
    assert wrong(mended(report, program)) == 0


def test_no_mark_is_reported_lost_whose_calls_are_all_there():
    assert audit(ordered(marked), *SHAPES).unused_marks == ()


def test_a_race_is_told_by_the_lines_of_the_program_not_only_by_those_of_libraries():
    for race in audit(untied, *SHAPES, **CALLBACKS).races:
        for call in (race.first, race.second):
            assert f"called at {__file__}" in str(call)


# equinox jits functions in its own way: what comes of its arguments, the audit has to find out.


class Store(eqx.Module):
    """A module with an array, a number, and a native object."""

    scale: jax.Array
    token: jax.Array
    exponent: int = eqx.field(static=True)

    def use(self, x):
        before = testing.read(self.token)
        testing.write(self.token, self.scale**self.exponent)
        return before + testing.read(self.token) + x

    @eqx.filter_jit
    def jitted(self, x):
        return self.use(x)


STORE = Store(jnp.float32(2), testing.slot(0), 3)
SLOT = {"reads": [testing.READ_TARGET], "writes": [testing.WRITE_TARGET]}


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        (eqx.filter_jit(lambda store, x: store.use(x)), (STORE, 1.0)),
        (eqx.filter_jit(STORE.use), (1.0,)),
        (Store.jitted, (STORE, 1.0)),
        (STORE.jitted, (1.0,)),
        (eqx.filter_jit(eqx.Partial(Store.use, STORE)), (1.0,)),
    ],
    ids=["a function", "a bound method", "a jitted method", "a bound jitted method", "a partial"],
)
def test_what_filter_jit_makes_is_audited(program, arguments):
    report = audit(program, *arguments, **SLOT)
    assert [(race.first.kind, race.second.kind) for race in report.races] == [("read", "write"), ("write", "read")]
    assert report.programs == ("as written", "compiled")


def test_what_filter_jit_makes_is_audited_in_order_too():
    in_order = ordered(lambda store, x: store.use(x), **SLOT)
    audit(eqx.filter_jit(in_order), STORE, 1.0, **SLOT).raise_if_races()
    marked_read = reads("slot", handle="token")(testing.read)
    marked_write = writes("slot", handle="token")(testing.write)

    def program(token, x):
        before = marked_read(token)
        marked_write(token, x)
        return before + marked_read(token)

    assert audit(eqx.filter_jit(program), testing.slot(0), 1.0).races
    audit(eqx.filter_jit(ordered(program)), testing.slot(0), 1.0).raise_if_races()


def test_the_parts_of_a_handle_are_one_object_behind_filter_jit():
    def program(handle, right):
        before, after = handle.read(testing.read)
        return before, (after if right else handle).write(testing.write, 1.0)[0]

    handle = Handle(testing.slot(0))
    audit(eqx.filter_jit(program), handle, True, **SLOT).raise_if_races()
    with pytest.warns(match="uses an old handle"):
        report = audit(eqx.filter_jit(program), handle, False, **SLOT)
    assert len(report.races) == 1


def test_the_list_of_calls_shows_what_lineax_binds():
    names = {call.name for call in calls(untied, *[jax.ShapeDtypeStruct((5, 5), jnp.float32)] * 2, jnp.zeros(5))}
    assert "linear_solve" in names
