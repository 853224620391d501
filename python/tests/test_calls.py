"""`calls` and its command: a call that the list leaves out would stay out of order."""

import functools
import sys

import jax
import jax.extend.core
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback
from jax.interpreters import mlir

from entangle_jax import Handle, _stacks, calls, entangle, testing
from entangle_jax.__main__ import main

TOKEN = jax.ShapeDtypeStruct((), jnp.int32)


def on_host(x):
    return x


def of(fn, *args):
    return [(call.kind, call.name) for call in calls(fn, *args)]


READ, WRITE = ("native call", testing.READ_TARGET), ("native call", testing.WRITE_TARGET)


def scan(token):
    return jax.lax.scan(lambda c, _: (testing.write(c, 1.0), testing.read(c)), token, length=3)


def condition(token):
    return jax.lax.while_loop(lambda c: testing.read(c) < 1, lambda c: testing.write(c, 1.0), token)


def switch(token):
    return jax.lax.switch(token, [testing.read, lambda t: testing.write(t, 1.0).astype(jnp.float32)], token)


@jax.custom_jvp
def custom(token):
    return testing.read(token)


custom.defjvp(lambda primals, tangents: (custom(*primals), jnp.float32(0)))


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda t: (testing.read(t), testing.write(t, 1.0)), [READ, WRITE]),
        (jax.jit(lambda t: testing.read(t)), [READ]),
        (scan, [WRITE, READ]),
        (condition, [READ, WRITE]),
        (switch, [READ, WRITE]),
        (jax.checkpoint(testing.read), [READ]),
        (custom, [READ]),
        (jax.vmap(testing.read, axis_size=2, in_axes=None), [READ]),
        (lambda t: Handle(t).write(testing.write, 1.0)[0], [WRITE]),
        (lambda t: jnp.sin(t) + jnp.linalg.inv(jnp.eye(2)), []),
    ],
    ids=["plain", "jit", "scan", "condition", "switch", "checkpoint", "custom_jvp", "vmap", "Handle", "none"],
)
def test_a_call_inside_of_something_is_listed(fn, expected):
    assert of(fn, TOKEN) == expected


@pytest.mark.parametrize("make", [lambda f: f, functools.partial, functools.cache], ids=["plain", "partial", "wrapper"])
def test_callbacks_are_told_apart_by_their_functions(make):
    def program(x):
        io_callback(make(on_host), None, x)
        jax.debug.callback(make(on_host), x)
        return jax.pure_callback(make(on_host), x, x)

    assert of(program, TOKEN) == [("callback", f"{__name__}.on_host")] * 3
    assert [call.side_effect for call in calls(program, TOKEN)] == [True, True, False]


def test_a_method_is_named_as_one():
    class Simulator:
        def step(self, x):
            return x

    assert calls(lambda x: jax.pure_callback(Simulator().step, x, x), TOKEN)[0].name.endswith("Simulator.step")


def test_a_primitive_of_another_package_is_listed_with_its_native_target():
    foreign = jax.extend.core.Primitive("foreign_solve")
    foreign.def_abstract_eval(lambda token, b: b)
    lowering = jax.ffi.ffi_lowering("their_target")
    mlir.register_lowering(foreign, lowering)
    (call,) = calls(jax.jit(lambda t, b: foreign.bind(t, b)), TOKEN, jax.ShapeDtypeStruct((3, 4), jnp.float32))
    assert (call.kind, call.name, call.targets) == ("primitive", "foreign_solve", ("their_target",))
    assert call.operands == ("int32[]", "float32[3,4]")
    assert call.results == ("float32[3,4]",)
    assert "native target: their_target" in str(call)


@pytest.mark.parametrize(("lowered", "said"), [(True, "none, XLA sees what it does"), (False, "not known")])
def test_of_a_primitive_that_calls_nothing_the_list_says_so_and_not_that_it_does_not_know(lowered, said):
    foreign = jax.extend.core.Primitive("foreign_sum")
    foreign.def_abstract_eval(lambda x: x)
    if lowered:
        mlir.register_lowering(foreign, mlir.lower_fun(lambda x: x + x, multiple_results=False))
    (call,) = calls(lambda x: foreign.bind(x), TOKEN)
    assert call.targets == (() if lowered else None)
    assert f"native target: {said}\n" in str(call)


@pytest.mark.parametrize(
    ("dtype", "shape", "expected"),
    [
        (jnp.int32, (), True),
        (jnp.uint32, (1,), True),
        (jnp.uint8, (8,), True),
        (jnp.int8, (), False),
        (jnp.int32, (2,), False),
        (jnp.float32, (), False),
        (jnp.int32, (0,), False),
        (jnp.bool, (), False),
    ],
)
def test_what_looks_like_a_handle(dtype, shape, expected):
    operand = jax.ShapeDtypeStruct(shape, dtype)
    call = jax.ffi.ffi_call("any", jax.ShapeDtypeStruct((), jnp.float32))
    assert calls(call, operand)[0].handles == ((0,) if expected else ())


def test_one_object_is_told_through_entangle_loops_and_conversions():
    def program(a, b):
        x = testing.read(a)
        testing.write(entangle(a, x).reshape(1)[0], x)
        y = jax.lax.fori_loop(0, 3, lambda i, y: y + testing.read(a), x)
        return y + testing.read(b)

    assert [call.shared for call in calls(program, TOKEN, TOKEN)] == [{0: (1, 2)}, {0: (0, 2)}, {0: (0, 1)}, {}]


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (["a.py", "b.py", "c.py"], [0, 1]),
        (["site-packages/lib.py"] * 3, [0, 1]),
        (["site-packages/lib.py"] * 5 + ["a.py", "b.py"], [0, 4]),
        (["site-packages/lib.py", "a.py", "site-packages/jit.py", "b.py"], [0, 1]),
        (["a.py", "site-packages/jit.py", "b.py"], [0, 2]),
        ([], []),
    ],
)
def test_of_a_long_stack_the_innermost_line_and_where_a_library_is_called_are_told(files, told):
    assert _stacks.told(files, 2) == told
    if "site-packages/lib.py" in files and "a.py" in files:
        assert files[_stacks.told(files, 3)[-1]] in {"a.py", "b.py"}


def test_the_lines_lead_from_the_call_to_the_caller():
    def inner(token):
        return testing.read(token)

    def program(token):
        return jax.jit(inner)(token) + jax.jit(inner)(token)

    lines = [call.sources[:2] for call in calls(program, TOKEN)]
    code = inner.__code__.co_firstlineno + 1, program.__code__.co_firstlineno + 1
    assert lines == [tuple(f"{__file__}:{line}" for line in code)] * 2


def test_a_loop_around_a_call_is_named():
    assert calls(jax.jit(scan), TOKEN)[0].around == ("scan",)
    assert "in the body of scan" in str(calls(jax.jit(scan), TOKEN))


def test_arguments_that_are_no_arrays_stay_what_they_are():
    def program(token, how, *, times):
        assert how == "twice"
        assert times == 2
        return [testing.read(token) for _ in range(times)], None, how

    assert len(calls(program, TOKEN, "twice", times=2)) == 2


def test_calls_are_found_where_jit_is_turned_off():
    with jax.disable_jit():
        assert of(scan, TOKEN) == [WRITE, READ]


def test_no_calls_is_an_answer_in_words():
    assert "there is nothing to order" in str(calls(jnp.sin, TOKEN))


def test_what_is_no_function_is_an_error():
    with pytest.raises(TypeError, match="got a int, wanted the function to look into"):
        calls(3)


# The command.


@pytest.fixture
def module(tmp_path, monkeypatch):
    source = "\n".join(
        [
            "from entangle_jax import testing",
            "class Solver:",
            "    @staticmethod",
            "    def step(token, times=1, name='x'):",
            "        assert name in ('x', 'cg'), name",
            "        return [testing.write(token, 1.0) for _ in range(times)]",
            "TOKEN = testing.slot(3)",
        ]
    )
    (tmp_path / "their_module.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    yield "their_module"
    sys.modules.pop("their_module", None)


@pytest.mark.parametrize(
    ("arguments", "count"),
    [(["int32[]"], 1), (["int32[]", "2", "'cg'"], 2), (["their_module:TOKEN"], 1)],
    ids=["type", "literals", "object"],
)
def test_the_command_lists_the_calls(module, arguments, count, capsys):
    assert main(["calls", f"{module}:Solver.step", *arguments]) == 0
    assert capsys.readouterr().out.count("native call entangle_testing_write(int32[] (handle?), float32[])") == count


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["their_module"], "names no function, wanted MODULE:FUNCTION"),
        (["no_such_module:f"], "the module 'no_such_module' cannot be imported"),
        (["their_module:Solver.walk"], "'their_module' has no 'Solver.walk'"),
        (["their_module:Solver.step", "float99[3]"], "there is no dtype 'float99'"),
        (["their_module:Solver.step", "wat"], "neither a type such as 'float32[100,3]', nor a Python literal"),
        (["their_module:Solver.step"], "cannot be traced with no arguments: TypeError"),
        (["their_module:Solver.step", "float32[]"], "cannot be traced with float32[]: TypeError"),
    ],
)
def test_the_command_says_in_one_line_what_is_wrong(module, arguments, said, capsys):
    assert main(["calls", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.startswith("entangle_jax calls: ")
