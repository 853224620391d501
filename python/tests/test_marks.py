"""A mark says what a function does, and changes nothing else about it."""

import dataclasses
import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from entangle_jax import _marks, _nested, ordered, reads, testing, writes
from entangle_jax._marks import Mark


def names(fn, *args):
    """The names of all jitted functions in a trace, the outermost first."""
    found = []

    def walk(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.primitive.name in ("jit", "pjit"):
                found.append(eqn.params["name"])
            for value in eqn.params.values():
                for item in value if isinstance(value, tuple | list) else (value,):
                    if hasattr(item, "eqns"):
                        walk(item)

    walk(jax.make_jaxpr(fn)(*args))
    return found


def marks(fn, *args):
    return [mark for name in names(fn, *args) if (mark := _marks.parse(name))]


@pytest.mark.parametrize("resource", ["mylib.matrix", "a/b", "a b[c](d):e", "größe", "%2F", "jit(x)/y"])
def test_a_name_is_read_back_whatever_is_in_it(resource):
    for mark in (Mark(resource, True), Mark(resource, False, True, True, True)):
        name = mark.name(lambda: 0)
        assert _marks.parse(name) == mark
        assert "/" not in name


@pytest.mark.parametrize("name", ["solve", "entangle_jax", "entangle_jax:reads", "x:entangle_jax:reads:a:b"])
def test_another_function_is_no_mark(name):
    assert _marks.parse(name) is None


@reads("m", handle="token")
def solve(token, b, label="solve"):
    return testing.read(token, b, label=label)


@pytest.mark.parametrize(
    "transform",
    [
        jax.jit,
        jax.checkpoint,
        lambda f: jax.vmap(f, in_axes=(None, 0)),
        lambda f: jax.grad(lambda t, b: b.sum() * f(t, b), 1),
    ],
    ids=["jit", "checkpoint", "vmap", "grad"],
)
def test_the_mark_is_in_the_trace_and_in_the_compiled_program(transform):
    args = testing.slot(0), jnp.ones(3)
    assert Mark("m", False, handle=True) in marks(transform(solve), *args)
    compiled = jax.jit(transform(solve)).lower(*args).compile().as_text()
    calls = [line for line in compiled.splitlines() if testing.READ_TARGET in line]
    assert calls
    assert all("entangle_jax:reads.handle:m:solve" in line for line in calls)


def test_outside_of_a_trace_it_just_calls_the_function():
    seen = []
    marked = writes("m")(lambda x: seen.append(x) or x)
    x = object()
    assert marked(x) is x
    assert seen == [x]


def test_what_is_no_array_stays_what_it_is_and_no_call_sees_what_another_saw():
    seen = []
    factor = [2]
    default = np.arange(3)

    @writes("m")
    def function(x, name, shape, *, flag, table=default):
        assert isinstance(name, str)
        assert isinstance(shape, tuple)
        assert isinstance(table, np.ndarray)
        seen.append((name, flag))
        y = x * factor[0] if flag else x
        return {"y": y.reshape(shape), "name": name, "n": len(shape), "none": None, "table": table}

    @jax.jit
    def program(x):
        a = function(x, "first", (2, 2), flag=True)
        factor[0] = 3
        b = function(x, "second", (4,), flag=True)
        c = function(x, "third", (4,), flag=False)
        assert (a["name"], b["n"], c["none"]) == ("first", 1, None)
        assert c["table"] is function.__wrapped__.__kwdefaults__["table"]
        return a["y"], b["y"], c["y"]

    a, b, c = program(jnp.arange(4))
    assert a.tolist() == [[0, 2], [4, 6]]
    assert b.tolist() == [0, 3, 6, 9]
    assert c.tolist() == [0, 1, 2, 3]
    assert seen == [("first", True), ("second", True), ("third", False)]


def test_methods_properties_partials_and_callables_work():
    class Solver:
        def __init__(self, scale):
            self.scale = scale

        @reads("m", handle="token")
        def solve(self, token):
            return token * self.scale

        @property
        @reads("m")
        def twice(self):
            return self.scale * 2

        half = reads("m")(property(lambda self: self.scale / 2))

        @staticmethod
        @writes("m", handle=0)
        def refactor(token):
            return token + 1

        other = writes("m")(staticmethod(lambda x: x + 2))
        kind = writes("m")(classmethod(lambda cls, x: x + len(cls.__name__)))

        def __call__(self, x):
            return x + self.scale

    def program(x):
        one, two = Solver(x), Solver(x + 1)
        partial = reads("m", handle=0)(functools.partial(jnp.add, x))
        return (
            one.solve(x), two.solve(x), one.twice, one.half, Solver.refactor(x), one.other(x), one.kind(x), partial(x),
            writes("m")(one)(x), reads("m", handle="x")(lambda *, x: x)(x=x),
        )  # fmt: skip

    values = jax.jit(program)(jnp.float32(3))
    assert [float(value) for value in values] == [9, 12, 6, 1.5, 4, 5, 9, 6, 6, 3]
    assert len(marks(program, jnp.float32(3))) == 10


def test_a_donated_argument_inside_is_donated_and_a_static_one_is_static():
    inner = jax.jit(lambda x, n: x * n, donate_argnums=0, static_argnums=1)
    jaxpr = jax.make_jaxpr(lambda x: writes("m")(lambda x: inner(x, 3))(x))(jnp.ones(2))
    (mark,) = jaxpr.eqns
    inside = mark.params["jaxpr"].eqns[0]
    assert inside.params["donated_invars"] == (True,)


def test_closures_tokens_and_refs_go_in():
    def program(x):
        ref = jax.new_ref(x)
        token = jax.lax.create_token()
        y = writes("m")(lambda token: (jax.lax.after_all(token), x + 1)[1])(token)
        writes("m", handle=0)(lambda ref: ref.__setitem__(..., ref[...] + y))(ref)
        return ref[...]

    assert jax.jit(program)(jnp.float32(1)) == 3


def test_nested_marks_both_stay():
    both = reads("a")(writes("b")(lambda x: x + 1))
    assert marks(both, 1.0) == [Mark("a", False), Mark("b", True)]


def test_no_tracer_leaks():
    with jax.checking_leaks():
        jax.jit(lambda x: reads("m")(lambda x: (x, "a"))(x)[0])(1.0)


def generator():
    yield 1


async def coroutine():
    return 1


async def asynchronous_generator():
    yield 1


class CallableGenerator:
    def __call__(self):
        yield 1


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (generator, "a generator"),
        (functools.partial(generator), "a generator"),
        (CallableGenerator(), "a generator"),
        (coroutine, "a coroutine"),
        (asynchronous_generator, "an asynchronous generator"),
    ],
)
def test_what_runs_later_than_it_is_called_is_refused(function, kind):
    with pytest.raises(TypeError, match=f"is {kind} function, which runs later than it is called"):
        reads("m")(function)


def test_errors_say_what_is_wrong():
    with pytest.raises(
        TypeError, match=r"the resource is an object of type function, wanted a name: `@reads\('mylib.matrix'\)`"
    ):
        reads(solve)
    with pytest.raises(TypeError, match="the resource is '', wanted a name"):
        writes("")
    with pytest.raises(TypeError, match="the handle is of type float"):
        writes("m", handle=1.0)
    with pytest.raises(TypeError, match="got an object of type int, wanted a function"):
        writes("m")(3)
    with pytest.raises(TypeError, match="the handle is argument 'tokens', and solve takes token, b, label"):
        reads("m", handle="tokens")(solve)
    with pytest.raises(TypeError, match="the handle is argument 3, and solve takes token, b, label"):
        reads("m", handle=3)(solve)


def test_a_ref_that_a_marked_function_returns_is_the_same_one_or_a_new_one_with_its_value():
    def look(token, ref):
        made = jax.new_ref(testing.read(token))
        ref[...] = made[...] + 1
        return made, ref, outer

    @jax.jit
    def program(token):
        nonlocal outer
        ref, outer = jax.new_ref(jnp.float32(0)), jax.new_ref(jnp.float32(5))
        made, same, outside = reads("slot")(look)(token, ref)
        assert same is ref
        assert outside is outer
        made[...] = made[...] + 10
        outside[...] = outside[...] + 1
        return made[...], ref[...], outer[...]

    outer = None
    testing.reset(2.0)
    assert [float(x) for x in program(testing.slot(0))] == [12, 3, 6]


def jaxprs_of(fn, *args):
    """The jaxprs of the marks in a trace, in order: equal calls share one, which JAX lowers once."""
    return [eqn.params["jaxpr"] for eqn in jax.make_jaxpr(fn)(*args).eqns if eqn.primitive.name in ("jit", "pjit")]


def kinds_of_trace(fn, *args):
    return len({id(jaxpr) for jaxpr in jaxprs_of(fn, *args)})


def test_calls_that_differ_in_numbers_alone_share_a_jaxpr_and_keep_their_numbers():
    @writes("m")
    def log(token, x, n):
        return testing.write(token, x * n + 2 * n)

    def program(token, x):
        for n in (1, 2, 3.5):
            log(token, x, n)
        log(token, x, True)
        return x

    args = testing.slot(0), jnp.float32(10)
    assert len(jaxprs_of(program, *args)) == 4
    assert kinds_of_trace(program, *args) == 1  # Python's numbers become float32 beside `x`
    testing.reset()
    jax.block_until_ready(jax.jit(ordered(program))(*args))
    assert [access.value for access in testing.log()] == [12, 24, 42, 12]


@dataclasses.dataclass(frozen=True)
class Call:
    """What one call does, always by the same lines."""

    primitive: object = jax.lax.sub_p
    operands: tuple = (0, 1)
    params: tuple = ()
    scope: str = "scope"
    partitionable: bool = True
    result: int = 3
    dtype: type = np.float32


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Call(), Call(primitive=jax.lax.add_p)),
        (Call(), Call(operands=(1, 0))),
        (Call(), Call(operands=(0, 2))),
        (Call(), Call(scope="other")),
        (Call(), Call(partitionable=False)),
        (Call(), Call(result=0)),
        (Call(), Call(result=4)),
        (Call(), Call(dtype=np.int32)),
        (Call(operands=(0, np.float32(2))), Call(operands=(0, 1))),
        (Call(operands=(0, 1)), Call(operands=(0, np.float32(2)))),
        (Call(jax.lax.pow_p, (0, np.float32(2))), Call(jax.lax.pow_p, (0, np.int32(2)))),
        (
            Call(jax.lax.integer_pow_p, (0,), (("y", 2),)),
            Call(jax.lax.integer_pow_p, (0,), (("y", 3),)),
        ),
    ],
    ids=lambda one: "" if one == Call() else str(one),
)
def test_a_call_never_gets_the_jaxpr_of_a_call_that_differs(one, other):
    @writes("m")
    def function(*arrays):
        made = tuple(arrays[i] if isinstance(i, int) else i for i in call.operands)
        with jax.named_scope(call.scope), jax.threefry_partitionable(call.partitionable):
            result = call.primitive.bind(*made, **dict(call.params))
        return (*arrays, result, (result, result))[call.result]

    def program(*arrays):
        nonlocal call
        results = []
        for call in (one, other, one):
            results += jax.tree.leaves(function(*(x.astype(call.dtype) for x in arrays)))
        return results

    call = one
    args = jnp.float32(5), jnp.float32(3), jnp.float32(1)
    first, second, third = jaxprs_of(program, *args)
    assert first is third
    assert first is not second
    values = [float(x) for x in jax.jit(program)(*args)]
    with jax.disable_jit():
        assert values == [float(x) for x in program(*args)]


def test_a_call_from_another_line_has_a_jaxpr_of_its_own():
    calls = [lambda token: testing.read(token), lambda token: testing.read(token)]
    program = lambda token: [reads("m")(call)(token) for call in calls]
    assert kinds_of_trace(program, testing.slot(0)) == 2


def test_calls_with_more_and_with_fewer_arguments_have_jaxprs_of_their_own():
    last = reads("m")(lambda *arrays: jax.lax.optimization_barrier(arrays)[-1])
    program = lambda x, y: (last(x, y), last(y), last(x, y), last(y))
    several, one, *again = jaxprs_of(program, jnp.float32(1), jnp.float32(2))
    assert several is not one
    assert again == [several, one]
    assert jax.jit(program)(1.0, 2.0) == (2, 2, 2, 2)


def test_values_of_different_types_are_not_the_same():
    distinct = [1, True, 1.0, np.float32(1), np.int32(1), "1", b"1", (1,), (True,), None]
    for i, a in enumerate(distinct):
        for k, b in enumerate(distinct):
            assert _nested._same(a, b) == (i == k)
    assert not _nested._same([1], [1])  # not known to be plain
    assert not _nested._same(np.float32(0), np.float32(-0.0))


def test_a_number_of_64_bits_inside_keeps_its_type_and_value():
    @reads("m")
    def function(x):
        with jax.enable_x64(True):
            return (x.astype(np.int64) * (2**40 + 3) >> 39).astype(np.int32)

    assert jax.jit(function)(jnp.int32(2)) == 4


def test_the_arguments_of_a_call_with_a_ref_stay_in_their_places():
    def program(x):
        ref = jax.new_ref(x)
        for factor in (2.0, 3.0, 3.0):
            writes("m")(lambda ref: ref.__setitem__(..., ref[...] * factor + x))(ref)  # noqa: B023 (traced at once)
        return ref[...]

    for mark in [eqn for eqn in jax.make_jaxpr(program)(1.0).eqns if eqn.primitive.name in ("jit", "pjit")]:
        assert len(mark.invars) == 2
    assert jax.jit(program)(jnp.float32(3)) == 93


def test_a_jaxpr_is_not_kept_once_nothing_else_keeps_it():
    def program(x):
        return reads("m.once")(jnp.sin)(x)

    jaxpr = weakref.ref(jaxprs_of(program, 1.0)[0])
    jax.clear_caches()
    gc.collect()
    assert jaxpr() is None


def test_a_ref_that_a_call_closes_over_and_is_given_is_one_ref():
    @jax.jit
    def program(x):
        ref = jax.new_ref(x)

        def add(other):
            other[...] = other[...] + 2.0  # a number in a function that writes to a Ref
            ref[...] = ref[...] * 3.0
            return ref[...]

        return writes("m")(add)(ref), ref[...]

    assert [float(x) for x in program(jnp.float32(1))] == [9, 9]


def test_disable_jit_erases_marks_and_nothing_else():
    with jax.disable_jit():
        assert jax.jit(jax.grad(reads("m")(lambda x: x * x)))(3.0) == 6
