"""Promise 5: a witness has no derivative, the payload has that of the identity, and reverse mode keeps no witness."""

import sys
import warnings

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import jet
from jax.test_util import check_grads

from entangle_jax import _private, entangle
from entangle_jax._primitive import entangle_p

W = jnp.float32(1.0)


def quick(f):
    """Compiled without optimizations, for tests of values alone."""
    return jax.jit(f, compiler_options={"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True})


# Values from public reports.
def test_an_infinite_derivative_of_a_witness_does_not_reach_the_gradient():
    assert jax.grad(lambda x: entangle(x, jnp.log(x)))(0.0) == 1
    assert jax.jvp(lambda x: entangle(x, jnp.log(x)), (0.0,), (1.0,))[1] == 1
    assert jax.jit(jax.grad(lambda x: entangle(x, jnp.sqrt(x))))(0.0) == 1


def test_a_witness_that_is_part_of_the_result_keeps_its_own_derivative():
    def f(x):
        first = 2 * x
        return first + 3 * entangle(x, first)

    assert jax.grad(f)(1.0) == 5
    assert jax.jvp(f, (1.0,), (1.0,))[1] == 5


def test_linear_transpose_gives_the_witness_zeros():
    f = jax.linear_transpose(lambda a, b: entangle(b, entangle(a, 1.0)), jnp.zeros(2), jnp.zeros(2))
    a, b = f(jnp.array([1.0, 2.0]))
    np.testing.assert_array_equal(a, [0, 0])
    np.testing.assert_array_equal(b, [1, 2])
    # Also when the witness is linear and really passed.
    f = jax.linear_transpose(lambda a, b: entangle(b, entangle(a, b)), jnp.zeros(2), jnp.zeros(2))
    np.testing.assert_array_equal(f(jnp.array([1.0, 2.0])), [[0, 0], [1, 2]])


def test_a_scan_carry_that_is_witness_and_payload_by_turns():
    def f(x):
        (y, _), _ = jax.lax.scan(lambda c, _: ((entangle(2 * c[0], c[1]), c[1] + c[0]), None), (x, x), None, length=3)
        return y

    assert jax.jvp(f, (1.0,), (1.0,)) == (8, 8)
    assert jax.grad(f)(1.0) == 8


# All transformations, in all pairs, give what they give for the identity.
def smooth(tie):
    def f(x):
        y = jnp.sin(x)
        a, b = tie((y * x, y), {"w": x**2, "n": 3}, jnp.arange(2))
        return tie(a * b + jnp.exp(-b), a).sum()

    return f


DERIVATIVES = {
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (jnp.cos(x),))[1].sum(),
    "grad": lambda f: lambda x: jax.grad(lambda x: f(x).sum())(x).sum(),
    "vjp": lambda f: lambda x: (lambda y, vjp: vjp(2 * y)[0].sum())(*jax.vjp(f, x)),
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](x).sum(),
    "jacfwd": lambda f: lambda x: jax.jacfwd(f)(x).sum(),
    "jacrev": lambda f: lambda x: jax.jacrev(f)(x).sum(),
    "transpose of linearize": lambda f: lambda x: jax.linear_transpose(jax.linearize(f, x)[1], x)(f(x))[0].sum(),
    "jit": lambda f: jax.jit(f),
    "vmap": lambda f: lambda x: jax.vmap(f)(jnp.stack([x, 2 * x])).sum(),
    "checkpoint": lambda f: jax.checkpoint(f),
    "checkpoint that keeps all": lambda f: jax.checkpoint(f, policy=jax.checkpoint_policies.everything_saveable),
}


def identity(payload, *witnesses):
    del witnesses
    return payload


@pytest.mark.parametrize("outer", DERIVATIVES)
def test_two_transformations_give_what_they_give_for_the_identity(outer):
    def all_inner_ones(x):
        return {
            inner: [DERIVATIVES[outer](DERIVATIVES[inner](smooth(tie)))(x) for tie in (entangle, identity)]
            for inner in DERIVATIVES
        }

    for got, wanted in quick(all_inner_ones)(jnp.array([0.3, 0.7])).values():
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


@pytest.mark.parametrize("of", [jax.hessian, lambda f: jax.jacrev(jax.jacrev(f)), lambda f: jax.jacrev(jax.jacfwd(f))])
def test_second_derivatives(of):
    x = jnp.array([0.3, 0.7])
    np.testing.assert_allclose(jax.jit(of(smooth(entangle)))(x), jax.jit(of(smooth(identity)))(x), rtol=1e-5)


def test_numerical_derivatives_of_the_second_order():
    check_grads(jax.jit(smooth(entangle)), (jnp.array([0.3, 0.7]),), order=2, rtol=2e-2, atol=2e-2)


# What has no derivative, and what is zero.
def test_a_tangent_waits_for_the_other_leaves_of_the_payload(slots):
    """As the leaf itself does. The other leaf comes from a native read, and a write follows the tangent."""

    def program(token, x):
        other = slots.read(token, label="other")
        _, tangent = jax.jvp(lambda b: entangle((other, b), W)[1], (x,), (x,))
        return slots.write(entangle(token, tangent), 1.0, label="after")

    assert "other" in compiled.paths(compiled.text(program, slots.slot(0), W))["after"]


def test_integer_payloads_have_float0_tangents():
    tangent = np.zeros(3, jax.dtypes.float0)
    result, out = jax.jvp(lambda p, w: entangle(p, w), (jnp.arange(3), W), (tangent, W))
    assert result.dtype == jnp.int32
    assert out.dtype == jax.dtypes.float0
    _, vjp = jax.vjp(lambda x, i: (entangle(x, i), entangle(i, x)), W, jnp.arange(3))
    gx, gi = vjp((W, tangent))
    assert (gx, gi.dtype) == (1, jax.dtypes.float0)
    grads = jax.grad(lambda p: entangle(p, W)["x"], allow_int=True)({"x": W, "i": jnp.arange(3)})
    assert grads["i"].dtype == jax.dtypes.float0
    key = jax.random.key(0)
    assert jax.grad(lambda x: entangle((x, key), x)[0] + jax.random.uniform(entangle(key, x)))(1.0) == 1


@jax.custom_jvp
def spy(x, y):
    return x + y


SEEN = []


def _spy_rule(primals, tangents):
    SEEN.append([type(t) is jax.custom_derivatives.SymbolicZero for t in tangents])
    return spy(*primals), jnp.zeros_like(primals[0])


spy.defjvp(_spy_rule, symbolic_zeros=True)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.checkpoint], ids=["plain", "jit", "checkpoint"])
def test_symbolic_zeros_stay_symbolic(transform):
    SEEN.clear()

    @transform
    def f(x):
        # One leaf has a tangent, the other does not, though it waits for something that has.
        moved, still = entangle((x, jnp.float32(2)), x * x)
        return spy(moved, still)

    jax.jvp(f, (W,), (W,))
    jax.linearize(f, W)
    jax.grad(f)(W)
    assert SEEN
    assert all(each == [False, True] for each in SEEN)


def test_a_cotangent_that_is_never_needed_stays_symbolic():
    @jax.custom_vjp
    def f(x):
        return x, x

    perturbed = []

    def forward(x):
        perturbed.append(x.perturbed)
        return (x.value, x.value), None

    def backward(_, cotangents):
        perturbed.append([type(c) is jax.custom_derivatives.SymbolicZero for c in cotangents])
        return (jnp.ones(()),)

    f.defvjp(forward, backward, symbolic_zeros=True)
    jax.grad(lambda x: entangle(f(entangle(x, x * x)), x)[0])(W)
    assert perturbed == [True, [False, True]]


@pytest.mark.parametrize("payload", ["x", "stop_gradient(x)"])
@pytest.mark.parametrize("witness", ["x", "x * x", "stop_gradient(x)", "jnp.int32(1)", "log(x - 1)"])
def test_a_witness_never_raises_and_never_counts(payload, witness):
    names = {"stop_gradient": jax.lax.stop_gradient, "jnp": jnp, "log": jnp.log}

    def f(x, tie):
        return x * tie(eval(payload, names, {"x": x}), eval(witness, names, {"x": x}))

    for transform in (jax.grad, jax.jacfwd, lambda g: jax.jit(jax.grad(g)), lambda g: jax.grad(jax.checkpoint(g))):
        assert transform(lambda x: f(x, entangle))(W) == transform(lambda x: f(x, identity))(W)


# Inside of what has derivative rules of its own.
def test_in_a_custom_linear_solve():
    matrix = jnp.array([[3.0, 1.0], [1.0, 2.0]])

    def solve(tie):
        def f(b, scale):
            def multiply(x):
                return tie(scale * matrix @ x, b)

            def solver(mv, v):
                del mv
                return tie(jnp.linalg.solve(scale * matrix, v), v.sum())

            return jax.lax.custom_linear_solve(multiply, tie(b, scale), solver, transpose_solve=solver).sum()

        return f

    for of in (jax.grad, jax.jacfwd):
        got, wanted = (jax.jit(of(solve(tie), argnums=(0, 1)))(jnp.ones(2), 2.0) for tie in (entangle, identity))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, wanted)


def test_in_custom_jvp_and_custom_vjp_rules():
    def make(tie):
        @jax.custom_jvp
        def f(x):
            return tie(jnp.sin(x), x)

        f.defjvp(lambda p, t: (f(*p), tie(2 * t[0] * jnp.cos(p[0]), p[0])))

        @jax.custom_vjp
        def g(x):
            return tie(jnp.sin(x), x)

        g.defvjp(lambda x: (g(x), tie(x, jnp.sin(x))), lambda x, c: (tie(3 * c * jnp.cos(x), c),))
        return lambda x: f(x) * g(x)

    x = jnp.array([0.4, 0.8])
    for of in (jax.grad, lambda f: jax.jit(jax.grad(f))):
        np.testing.assert_allclose(of(make(entangle))(x[0]), of(make(identity))(x[0]), rtol=1e-6)
        np.testing.assert_allclose(jax.vmap(of(make(entangle)))(x), jax.vmap(of(make(identity)))(x), rtol=1e-6)


def test_jet_orders_every_term():
    def f(tie):
        return lambda x, y: tie((jnp.sin(x) * y, y), jnp.exp(x))[0]

    terms = ((1.0, 0.5, 0.2), (0.3, 0.1, 0.0))
    got, wanted = (jet.jet(f(tie), (0.7, 0.4), terms) for tie in (entangle, identity))
    jax.tree.map(np.testing.assert_allclose, got, wanted)
    text = str(jax.make_jaxpr(lambda x, y: jet.jet(f(entangle), (x, y), terms))(0.7, 0.4))
    assert text.count(" entangle[") == 2, "one call for the payload, one for all terms"
    assert f"n={2 * 3}" in text


def test_jet_of_a_function_that_was_traced_before_jet_was_there(monkeypatch):
    f = jax.jit(lambda x: entangle(x * x, x))
    monkeypatch.delitem(jet.jet_rules, entangle_p, raising=False)
    monkeypatch.delitem(sys.modules, "jax.experimental.jet")
    f(2.0)
    monkeypatch.undo()
    jet.jet_rules.pop(entangle_p, None)
    value, terms = jet.jet(f, (2.0,), ((1.0, 0.0),))
    np.testing.assert_allclose([value, *terms], [4, 4, 2], rtol=1e-6)


# Reverse mode holds no witness. `jit(grad)` would prove nothing: XLA deletes what is not used.
WITNESS = (1234,)


def plain(x):
    return jnp.sin(entangle(jnp.sin(x), x + jnp.zeros(WITNESS)))


def shared_leaf(x):
    return jnp.sin(entangle((jnp.sin(x), x + jnp.zeros(WITNESS)), x + jnp.ones(WITNESS))[0])


def jitted_body(x):
    return jax.jit(plain)(x) * 2


def in_scan(x):
    return jax.lax.scan(lambda c, _: (plain(c), None), x, None, length=5)[0]


def in_scan_with_the_witness_from_outside(x):
    w = x + jnp.zeros(WITNESS)
    return jax.lax.scan(lambda c, _: (jnp.sin(entangle(c, w)), None), x, None, length=5)[0]


def in_cond(x):
    return jax.lax.cond(x > 0, plain, jnp.cos, x)


def in_vmap(x):
    return jax.vmap(plain)(x * jnp.arange(3.0)).sum()


def in_fori_loop(x):
    return jax.lax.fori_loop(0, 4, lambda _, c: plain(c), x)


def under_jvp(x):
    return jax.jvp(plain, (x,), (x,))[0]


def in_checkpoint(x):
    return jax.checkpoint(plain)(x)


def in_scan_of_checkpoint(x):
    return jax.lax.scan(lambda c, _: (jax.checkpoint(plain)(c), None), x, None, length=5)[0]


def in_checkpoint_of_scan(x):
    return jax.checkpoint(in_scan)(x)


def in_jit_in_checkpoint_in_vmap(x):
    return jax.vmap(jax.checkpoint(jax.jit(plain)))(x * jnp.arange(3.0)).sum()


def in_custom_vjp_forward(x):
    @jax.custom_vjp
    def f(x):
        return plain(x)

    f.defvjp(lambda x: jax.vjp(plain, x), lambda vjp, c: vjp(c))
    return f(x)


RESIDUALS = [
    plain, shared_leaf, jitted_body, in_scan, in_scan_with_the_witness_from_outside, in_cond, in_vmap, in_fori_loop, under_jvp,
    in_checkpoint, in_scan_of_checkpoint, in_checkpoint_of_scan, in_jit_in_checkpoint_in_vmap, in_custom_vjp_forward,
]  # fmt: skip


def shapes_held(f, x):
    _, vjp = jax.vjp(f, x)
    compiled = jax.jit(lambda x: jax.vjp(f, x))(x)[1]
    return [leaf.shape for held in (vjp, compiled) for leaf in jax.tree.leaves(held)]


@pytest.mark.parametrize("f", RESIDUALS, ids=lambda f: f.__name__)
def test_reverse_mode_holds_no_witness(f):
    assert not [shape for shape in shapes_held(f, jnp.float32(0.5)) if shape[-1:] == WITNESS]


def test_the_test_above_sees_a_witness_that_is_held(monkeypatch):
    """With the rule that derives a linearization from the JVP rule, which keeps the witness."""
    monkeypatch.delitem(_private.primitive_linearizations, entangle_p)
    assert WITNESS in shapes_held(lambda x: jnp.sin(entangle(x, x + jnp.zeros(WITNESS))), jnp.float32(0.5))


POLICIES = {
    name: policy
    for name, policy in vars(jax.checkpoint_policies).items()
    if not name.startswith("_") and not isinstance(policy, type)  # classes of policies that have a function as well
}
# Policies that are made: of the arguments that make one that keeps or offloads as much as it can.
MADE = {
    "save_any_names_but_these": lambda make: make("other"),
    "save_anything_except_these_names": lambda make: make("other"),
    "save_only_these_names": lambda make: make("payload"),
    "save_from_both_policies": lambda make: make(POLICIES["dots_saveable"], POLICIES["everything_saveable"]),
    "save_and_offload_only_these_names": lambda make: make(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["payload"],
        offload_src="device",
        offload_dst="pinned_host",
    ),
    "offload_dot_with_no_batch_dims": lambda make: make("device", "pinned_host"),
}


@pytest.mark.parametrize("name", POLICIES)
def test_no_checkpoint_policy_makes_reverse_mode_hold_a_witness(name):
    policy = MADE.get(name, lambda policy: policy)(POLICIES[name])

    def f(x):
        y = checkpoint_name(jnp.sin(x), "payload")
        return jnp.sin(entangle(y, jnp.sin(x) + jnp.zeros(WITNESS)))

    x = jnp.float32(0.5)
    assert not [shape for shape in shapes_held(jax.checkpoint(f, policy=policy), x) if shape[-1:] == WITNESS]
    got = jax.vjp(jax.checkpoint(f, policy=policy), x)[1](jnp.float32(1))[0]
    np.testing.assert_allclose(got, jnp.cos(jnp.sin(x)) * jnp.cos(x), rtol=1e-6)


def test_a_policy_of_ones_own_may_keep_the_result_of_entangle():
    policies = jax.checkpoint_policies.everything_saveable, lambda primitive, *_, **__: primitive.name == "entangle"
    for policy in policies:
        backward = jax.make_jaxpr(lambda x, policy=policy: jax.vjp(jax.checkpoint(plain, policy=policy), x)[1](x))(0.5)
        assert str(backward).count(" entangle[") == 1, "made once, not again in the backward pass"


def test_the_cotangent_passes_untouched():
    def backward(x, c):
        return jax.vjp(lambda x: entangle(x, x + 1), x)[1](c)

    jaxpr = jax.make_jaxpr(backward)(W, W).jaxpr
    (result,) = jaxpr.outvars
    assert result is jaxpr.invars[1]


def test_nothing_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.hessian(smooth(entangle))(jnp.ones(2))
