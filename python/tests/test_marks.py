"""A mark says what a function does, and changes nothing else about it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from entangle_jax import _marks, reads, testing, writes
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
