"""Each rule, each token and each edge of `ordered` is needed: with any one of them taken out, a check fails that passes otherwise."""

import functools
import importlib
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.interpreters import mlir
from jax.sharding import PartitionSpec

import entangle_jax
from entangle_jax import _private, audit, reads, testing, writes

# In the order in which they import each other.
MODULES = [f"_ordering.{name}" for name in ("jaxprs", "accesses", "objects", "plan", "world", "evaluate", "rules")] + [
    "_ordered"
]
SOURCES = {name: importlib.import_module(f"entangle_jax.{name}") for name in MODULES}
SOURCES = {name: (module.__file__, Path(module.__file__).read_text()) for name, module in SOURCES.items()}

X = np.random.default_rng(0).integers(2**31, size=300, dtype=np.int32)
SCALAR = jax.ShapeDtypeStruct((), jnp.float32)
read = reads("slot", handle="token")(testing.read)
write = writes("slot", handle="token")(testing.write)


def mutated(module=None, old="", new=""):
    """`ordered`, of a copy of its modules in which one place is changed."""
    names = [f"entangle_jax.{name}" for name in MODULES]
    before = {name: sys.modules[name] for name in names}
    try:
        for name in MODULES:
            file, source = SOURCES[name]
            if name == module:
                assert source.count(old) == 1, (
                    f"`{old}` is in {name} {source.count(old)} times, wanted once: adapt this test"
                )
                source = source.replace(old, new)
            copy = types.ModuleType(f"entangle_jax.{name}")
            copy.__file__, copy.__package__ = file, f"entangle_jax.{name}".rpartition(".")[0]
            sys.modules[copy.__name__] = copy
            parent = sys.modules[copy.__package__]
            setattr(parent, name.rpartition(".")[2], copy)
            exec(compile(source, file, "exec"), copy.__dict__)
        return sys.modules["entangle_jax._ordered"].ordered
    finally:
        for name, module_before in before.items():
            sys.modules[name] = module_before
            setattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2], module_before)


def proven(fn, *args):
    """No race, by the audit; and the same again from Python callbacks, whose order is looked at by running."""
    report = audit(fn, *args, reads=[testing.READ_TARGET], writes=[testing.WRITE_TARGET])
    assert not report.races, str(report)


def around(construct):
    """A write and a read, a construct, and a read, a write and a read. The construct gets the token."""

    def check(ordered):
        def fn(token, x):
            write(token, 0.5)
            before = read(token, jnp.sort(x))
            inside = construct(token, x)
            after = read(token, x)
            write(token, 7.0)
            return before, inside, after, read(token)

        proven(ordered(fn), testing.slot(0), X)

    return check


def both(token, x, value=1.0):
    write(token, value)
    return read(token, x)


def scan(token, x):
    return jax.lax.scan(lambda c, k: (c, both(token, x, k)), 0, jnp.arange(3.0))[1]


def reading_scan(token, x):
    return jax.lax.scan(lambda c, k: (c, read(token, x + c)), 0, jnp.arange(3.0))[1]


def while_(token, x):
    return jax.lax.while_loop(lambda k: k < x[0], lambda k: k + 1 + both(token, x) * 0, jnp.float32(0))


def while_with_calls(token, x):
    def go(k):
        return both(token, x, 3.0) > k

    return jax.lax.while_loop(go, lambda k: k + 1 + both(token, x, k) * 0, jnp.float32(0))


def cond(token, x):
    return jax.lax.cond(x[0] > 0, lambda: both(token, x), lambda: jnp.float32(0))


def reading_cond(token, x):
    return jax.lax.cond(x[0] > 0, lambda: read(token, x), lambda: jnp.float32(0))


def reads_that_may_not_run(token, x):
    def body(c, k):
        write(token, k)
        looped = jax.lax.while_loop(lambda s: s < x[1], lambda s: s + 1 + read(token, x), jnp.float32(0))
        return c, (looped, reading_cond(token, x))

    return jax.lax.scan(body, 0, jnp.arange(3.0))[1]


def jit(token, x):
    return jax.jit(both)(token, x)


def checkpoint(token, x):
    return jax.checkpoint(lambda x: both_quietly(token, x))(x)


def both_quietly(token, x):
    """Without a call that is marked as a side effect, which some versions of JAX refuse in here."""
    return writes("slot", handle=0)(lambda token: testing.read(token, x))(token)


def custom_jvp(token, x):
    f = jax.custom_jvp(lambda x: both_quietly(token, x))
    f.defjvp(lambda primals, tangents: (f(*primals), jnp.float32(0)))
    return f(x)


def custom_vjp(token, x):
    f = jax.custom_vjp(lambda x: both_quietly(token, x))
    f.defvjp(lambda x: (f(x), None), lambda _, ct: (ct,))
    return f(x)


def custom_vmap(token, x):
    f = jax.custom_batching.custom_vmap(lambda x: both(token, x))
    f.def_vmap(lambda size, batched, x: (both(token, x), False))
    return f(x)


def linear_solve(token, x):
    solve = lambda _, b: b + both_quietly(token, x)
    return jax.lax.custom_linear_solve(lambda b: b, jnp.float32(1), solve, solve)


def shard_map(token, x):
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])
    return jax.shard_map(both, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False)(
        token, x
    )


def straight(ordered):
    def fn(token, x):
        a = read(token, jnp.sort(x)), read(token, x)
        write(token, 1.0)
        write(token, 2.0)
        return a, read(token)

    proven(ordered(fn), testing.slot(0), X)


def unknown_handle(ordered):
    def fn(tokens, i):
        write(tokens[0], 1.0)
        return read(tokens[i])

    audited = audit(
        ordered(fn), jnp.arange(2), jnp.int32(0), reads=[testing.READ_TARGET], writes=[testing.WRITE_TARGET]
    )
    assert not audited.races


def callbacks(ordered):
    seen = []
    push = writes("queue")(lambda i, x: io_callback(lambda _: seen.append(i), None, x))
    pull = writes("queue")(lambda i: io_callback(lambda: seen.append(i) or np.float32(0), SCALAR))

    def fn(x):
        for i in range(4):
            x = jnp.sort(x ^ i)
        push(0, x)
        pull(1)
        push(2, X)
        return pull(3)

    step = jax.jit(ordered(fn))
    for _ in range(10):
        seen.clear()
        step(np.tile(X, 100)).block_until_ready()
        jax.effects_barrier()
        assert seen == [0, 1, 2, 3]


def without_operands(ordered):
    pull = writes("queue")(lambda: io_callback(lambda: np.float32(0), SCALAR))
    audited = audit(ordered(lambda x: (x, pull(), pull(), pull())), jnp.float32(1))
    assert not audited.races, str(audited)
    # XLA keeps what is not marked as a side effect only where something needs its result.
    seen = []
    draw = writes("queue")(lambda: jax.pure_callback(lambda: seen.append(1) or np.float32(0), SCALAR))
    jax.jit(ordered(lambda x: (draw(), draw(), x)[2]))(jnp.float32(1)).block_until_ready()
    jax.effects_barrier()
    assert len(seen) == 2


def last_write(ordered):
    seen = []
    save = writes("file")(lambda x: jax.pure_callback(lambda x: seen.append(1) or x, SCALAR, x))
    for result in (lambda x: x, lambda x: x + 1):
        seen.clear()
        jax.jit(ordered(lambda x, result=result: (save(x), result(x))[1]))(jnp.float32(1)).block_until_ready()
        jax.effects_barrier()
        assert seen


def opaque(ordered):
    """Calls in it that give nothing to its results: in order, and before what comes after it."""
    whole = writes("slot", opaque=True)(lambda token, x: (testing.write(token, x[0]), testing.read(token))[1])

    def fn(token, x):
        return read(token, x), whole(token, jnp.sort(x)), read(token)

    proven(ordered(fn), testing.slot(0), X)


def opaque_last_write(ordered):
    seen = []
    save = writes("file", opaque=True)(
        lambda x: (jax.pure_callback(lambda x: seen.append(1) or x, SCALAR, x), x + 1)[1]
    )
    jax.jit(ordered(lambda x: (save(x), x)[1]))(jnp.float32(1)).block_until_ready()
    jax.effects_barrier()
    assert seen


def opaque_resources(ordered):
    whole = writes("all", opaque=True)(lambda token, x: (write(token, x[0]), jnp.float32(0))[1])
    proven(ordered(lambda token, x: (whole(token, jnp.sort(x)), read(token))), testing.slot(0), X)


def opaque_primitives(ordered):
    """Two operations in it, each with a call that needs none of its operands and gives nothing to its results."""
    primitive = _private.Primitive("test_two_calls")
    primitive.def_abstract_eval(lambda x: x)

    def lowered(x):
        testing.write(jnp.int32(0), jnp.sort(jnp.asarray(X))[0].astype(jnp.float32))
        return x + 0

    mlir.register_lowering(primitive, mlir.lower_fun(lowered, multiple_results=False))
    whole = writes("slot", opaque=True)(lambda x: primitive.bind(primitive.bind(x)))
    proven(ordered(lambda token, x: (read(token, x), whole(x), read(token))), testing.slot(0), X)


def volatile(ordered):
    clock = reads("clock", volatile=True)(testing.read)
    testing.reset()
    jax.block_until_ready(jax.jit(ordered(lambda token: (clock(token), clock(token))))(testing.slot(0)))
    assert len(testing.log()) == 2


def derivative(ordered):
    """A rule for derivatives from outside: its read is after the write."""

    @jax.custom_jvp
    def scaled(x, token):
        return x * read(token)

    scaled.defjvp(lambda p, t: (p[0] * read(p[1]), t[0] * read(p[1])))

    def fn(x, token):
        write(token, 2.0)
        return scaled(x, token)

    proven(jax.grad(ordered(fn)), jnp.float32(1), testing.slot(0))


def backward(ordered):
    """A backward pass with accesses is refused."""

    @jax.custom_vjp
    def scaled(x, token):
        return x * read(token)

    scaled.defvjp(lambda x, token: (x * read(token), token), lambda token, ct: (ct * read(token), None))

    def fn(x, token):
        write(token, 2.0)
        return scaled(x, token)

    with pytest.raises(TypeError, match="Differentiate first"):
        jax.make_jaxpr(jax.grad(ordered(fn)))(jnp.float32(1), testing.slot(0))


def tangent(ordered):
    """An access that needs a tangent is refused."""

    @jax.custom_jvp
    def scaled(x, token):
        return x * read(token)

    scaled.defjvp(lambda p, t: (p[0], t[0] + read(p[1], t[0])))

    def fn(x, token):
        write(token, 2.0)
        return scaled(x, token)

    with pytest.raises(TypeError, match="Differentiate first"):
        jax.make_jaxpr(lambda x, token: jax.jvp(lambda x: ordered(fn)(x, token), (x,), (x,)))(
            jnp.float32(1), testing.slot(0)
        )


def recomputed(ordered):
    """A checkpointed read is not read again in the backward pass."""

    def fn(x, token):
        write(token, 2.0)
        return jax.checkpoint(lambda x: jnp.sin(x * jax.lax.stop_gradient(read(token))))(x)

    assert reads_in(jax.value_and_grad(ordered(fn))) == 1


def recomputed_around(ordered):
    """Nor if the checkpoint is around the ordered function."""

    def fn(x, token):
        token = writes("slot")(lambda token: token + jnp.int32(testing.read(token)))(token)
        return jnp.sin(x * jax.lax.stop_gradient(read(token)))

    assert reads_in(jax.value_and_grad(jax.checkpoint(ordered(fn)))) == 2


def recomputed_loop(ordered):
    """Nor a loop of which JAX cannot save what is in it."""

    def fn(x, token):
        def body(k):
            return k + 1 + 0 * writes("slot")(lambda: testing.read(token, k))()

        n = jax.lax.while_loop(lambda k: k < x, body, jnp.float32(0))
        return jnp.sin(x * jax.lax.stop_gradient(n))

    assert reads_in(jax.value_and_grad(jax.checkpoint(ordered(fn)))) == 1


def reads_in(fn):
    def calls(jaxpr):
        inner = [x for eqn in jaxpr.eqns for x in eqn.params.values() if hasattr(x, "eqns")]
        return sum(eqn.params.get("target_name") == testing.READ_TARGET for eqn in jaxpr.eqns) + sum(map(calls, inner))

    return calls(jax.make_jaxpr(fn)(jnp.float32(1), testing.slot(0)))


def batched_branch(ordered):
    def fn(token, flag):
        return jax.lax.cond(flag > 0, lambda: write(token, 1.0), lambda: token)

    with pytest.raises(TypeError, match="batches the predicate"):
        jax.make_jaxpr(jax.vmap(ordered(fn), in_axes=(None, 0)))(testing.slot(0), jnp.arange(2))


def batched_rule(ordered):
    """The rule for batches of a `custom_vmap` function, from outside."""
    f = jax.vmap(ordered(lambda token, x: (write(token, 1.0), custom_vmap(token, x), read(token))), in_axes=(None, 0))
    proven(f, testing.slot(0), np.stack([X, X]))


CHECKS = {
    "straight": straight, "unknown_handle": unknown_handle, "callbacks": callbacks, "without_operands": without_operands, "last_write": last_write,
    "opaque": opaque, "opaque_last_write": opaque_last_write, "opaque_resources": opaque_resources, "opaque_primitives": opaque_primitives,
    "volatile": volatile,
    "derivative": derivative, "backward": backward, "tangent": tangent, "recomputed": recomputed, "recomputed_around": recomputed_around,
    "recomputed_loop": recomputed_loop, "batched_branch": batched_branch,
    "batched_rule": batched_rule,
    **{f.__name__: around(f) for f in (
        scan, reading_scan, while_, while_with_calls, cond, reading_cond, reads_that_may_not_run, jit, checkpoint, custom_jvp, custom_vjp, custom_vmap,
        linear_solve, shard_map,
    )},
}  # fmt: skip


@functools.cache
def passes(name):
    CHECKS[name](mutated())
    return True


RULES = {
    '@_rule("jit", "pjit")': "jit", '@_rule("remat2", "checkpoint")': "checkpoint", '@_rule("scan")': "scan",
    '@_rule("while")': "while_", '@_rule("cond")': "cond", '@_rule("shard_map")': "shard_map",
    '@_rule("custom_jvp_call")': "custom_jvp", '@_rule("custom_vjp_call")': "custom_vjp",
    '@_rule("custom_vmap_call")': "custom_vmap", '@_rule("custom_linear_solve")': "linear_solve",
}  # fmt: skip
FLOWS = {'"scan": _scan,': "scan", '"while": _while,': "while_", '"cond": _cond,': "cond", '"custom_vmap_call": _call("call"),': "custom_vmap",
         '"custom_linear_solve": _linear_solve,': "linear_solve"}  # fmt: skip

# What is changed: the module, the place, what stands there instead, and the check that fails then.
WORLD, EVALUATE, THE_RULES, PLAN, OBJECTS = (
    f"_ordering.{name}" for name in ("world", "evaluate", "rules", "plan", "objects")
)
MUTATIONS = {
    **{f"no rule: {old}": (THE_RULES, old, '@_rule("none")', check) for old, check in RULES.items()},
    **{f"no flow: {old}": (PLAN, old, "", check) for old, check in FLOWS.items()},
    "an access does not wait": (EVALUATE, "ins[one] = _waiting(ins[one], waits)", "pass", "straight"),
    "nothing waits for writes": (WORLD, "for one in (*past.writes, *(past.reads if writes else ())):", "for one in past.reads if writes else ():", "straight"),
    "a write does not wait for reads": (WORLD, "*(past.reads if writes else ())", "*()", "straight"),
    "a read is forgotten": (WORLD, "else replace(past, reads=(*past.reads, *witnesses))", "else past", "straight"),
    "only the last read is kept": (WORLD, "else replace(past, reads=(*past.reads, *witnesses))", "else replace(past, reads=witnesses)", "straight"),
    "a write is forgotten": (WORLD, "Past(witnesses, (), kept) if writes", "past if writes", "straight"),
    "a body does not wait for writes before it": (WORLD, "writes = _token(past.writes)", "writes = None", "reading_cond"),
    "a body does not wait for reads before it": (WORLD, "else _token(past.reads) if past.reads else writes", "else writes", "jit"),
    "what stands for all does not stand for reads": (WORLD, "entangle(_zero(), *past.writes, *past.reads)", "entangle(_zero(), *past.writes)", "scan"),
    "what stands for all stands for reads alone": (WORLD, "entangle(_zero(), *past.writes, *past.reads)", "entangle(_zero(), *past.reads)", "reads_that_may_not_run"),
    "a reading loop forgets the iterations before": (WORLD, "*past.reads, *earlier)", "*past.reads)", "reading_scan"),
    "reads in a body are forgotten": (WORLD, "else replace(past, reads=(*past.reads, everything))", "else past", "reading_scan"),
    "writes in a body are forgotten": (WORLD, "Past((writes,), (everything,), kept)", "past", "jit"),
    "a body begins without its reads": (WORLD, "reads = (everything,) if written and everything is not None else ()", "reads = ()", "scan"),
    "a body begins without its writes": (WORLD, "Past(() if writes is None else (writes,), reads, kept=False)", "Past((), reads, kept=False)", "reading_scan"),
    "a loop's condition is not in order": (THE_RULES, "    if not evaluation.cells_of(condition):\n", "    if True:\n", "while_with_calls"),
    "a loop's end is forgotten": (THE_RULES, "return self._world.left(self._cells, tokens, kept=kept)", "return self._world", "scan"),
    "a call without operands does not wait": (EVALUATE, "*(waits or [jnp.zeros((), jnp.int32)])", "jnp.zeros((), jnp.int32)", "callbacks"),
    "a call without results is not waited for": (EVALUATE, "return outs, world.after(cells, (witness,), kept=step.kept)", "return outs, world", "callbacks"),
    "a branch's token does not stand for the call in it": (EVALUATE, "*(made or [jnp.ones((), jnp.int32)])", "jnp.ones((), jnp.int32)", "without_operands"),
    "what an opaque function hides is in no branch": (EVALUATE, "(step.hides and not step.alone) or ", "", "opaque"),
    "calls in an opaque function are in no order": (EVALUATE, "if step.inside is None else", "if True else", "opaque"),
    "what is seen in an opaque function is not kept": (EVALUATE, "return [*outs, *world.waits(dict.fromkeys(cells, True))]", "return outs", "opaque_last_write"),
    "what an opaque function touches under other marks is forgotten": (PLAN, "self._access(eqn, ins, named, marks, inside.touches)", "self._access(eqn, ins, named, marks)", "opaque_resources"),
    "an operation in an opaque function makes one call": (PLAN, "any(mark.opaque for mark in marks) and accesses.hides(eqn)\n", "False\n", "opaque_primitives"),
    "a last write is lost": ("_ordered", "    if unkept:\n", "    if False:\n", "last_write"),
    "a result does not wait for a last write": ("_ordered", "results[i] = entangle(results[i], *writes)", "pass", "last_write"),
    "an unknown handle is another object": (OBJECTS, "    if forwards(eqn):\n", '    if eqn.primitive.name == "dynamic_slice":\n        return [frozenset({(("other", 0), WHOLE)})]\n    if forwards(eqn):\n', "unknown_handle"),
    "volatile is a read": (PLAN, "mark.orders_as_a_write", "mark.writes", "volatile"),
    "a rule for derivatives begins without tokens": (THE_RULES, "_like(tokens, primals[:count]), operands)", "dict.fromkeys(tokens, (None, None)), operands)", "derivative"),
    "a backward pass is not looked at": (THE_RULES, "if evaluation.cells_of(plan) or evaluation.cells.unknown_write(plan.touches):", "if False:", "backward"),
    "tangents are not looked at": (THE_RULES, "if i in plan.steps and evaluation.cells_of(plan.steps[i]):", "if False:", "tangent"),
    "a checkpoint reads again": (EVALUATE, "if self.saves else values", "if False else values", "recomputed"),
    "a checkpoint runs a loop again": (EVALUATE, 'if eqn.primitive.name == "while":', "if False:", "recomputed_loop"),
    "what is in a loop is saved": (THE_RULES, "    evaluation = replace(evaluation, saves=False)\n", "", "recomputed_loop"),
    "a batched predicate is taken": (THE_RULES, "    if not any(evaluation.cells_of(region).values()):\n", "    if True:\n", "batched_branch"),
    "a rule for batches begins without tokens": (THE_RULES, "_body(evaluation, plan, cells)(_like(tokens, operands[:count]), operands[count:])", "_body(evaluation, plan, cells)(dict.fromkeys(tokens, (None, None)), operands[count:])", "batched_rule"),
}  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_without_this_a_check_fails(mutation):
    module, old, new, check = MUTATIONS[mutation]
    assert passes(check)
    ordered = mutated(module, old, new)
    with pytest.raises(BaseException) as caught:  # noqa: PT011 (any failure of the check)
        CHECKS[check](ordered)
    assert not isinstance(caught.value, KeyboardInterrupt)


@pytest.mark.parametrize("check", CHECKS)
def test_with_all_of_it_no_check_fails(check):
    assert passes(check)


def test_every_rule_is_among_them():
    from entangle_jax._ordering.evaluate import RULES as registered

    taken_out = {name for old in RULES for name in old.removeprefix("@_rule(").rstrip(")").replace('"', "").split(", ")}
    assert set(registered) - taken_out == {"closed_call", "core_call", "core_closed_call"}
    assert entangle_jax.ordered is not mutated()
