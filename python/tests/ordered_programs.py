"""Random programs whose native calls and callbacks are in no order but that of the text, and what the text says.

A program is a list of statements: accesses, and constructs with programs inside. `function_of` makes a function of it that
ties nothing to anything. `interpret` runs a jaxpr as plain Python would, one equation after the other.
"""

import functools
import itertools

import delays
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax.experimental import io_callback
from jax.sharding import PartitionSpec

from entangle_jax import reads, testing, writes

LATEST = 3
X = delays.numbers(3_000)
TOKENS = np.arange(3, dtype=np.int32)


# Two objects of one resource, told apart by the token; one of another resource; and a queue in Python.
@reads("law.slots", handle="token")
def read_slot(token, late, label):
    return testing.read(token, late, label=label)


@writes("law.slots", handle=0)
def write_slot(token, value, label):
    return testing.write(token, value, label=label)


@reads("law.whole")
def read_whole(token, late, label):
    return testing.read(token, late, label=label) + 0.5  # a boundary: no result is the call's own


@writes("law.whole")
def write_whole(token, value, label):
    """Two calls in one mark: they run in the order of the text."""
    testing.write(token, -value, label=label)
    return testing.write(token, value, label=label)


QUEUE = []
"""What the callbacks left, in the order in which they ran."""


def push(value):
    QUEUE.append(float(value))


def push_one():
    QUEUE.append(1.0)
    return np.float32(len(QUEUE))


def length():
    return np.float32(len(QUEUE))


SCALAR = jax.ShapeDtypeStruct((), jnp.float32)


@writes("law.queue")
def push_without_result(value):
    io_callback(push, None, value)


@writes("law.queue")
def push_without_operand():
    return io_callback(push_one, SCALAR)


@reads("law.queue")
def read_queue(late):
    return jax.pure_callback(lambda _: length(), SCALAR, late)


late = st.integers(0, LATEST)
ACCESSES = {
    "read": st.tuples(st.just("read"), st.integers(0, 2), late),
    "write": st.tuples(st.just("write"), st.integers(0, 2), late),
    "copy": st.tuples(st.just("copy"), st.integers(0, 2)),
    "push": st.tuples(st.just("push"), late),
    "push one": st.tuples(st.just("push one")),
    "length": st.tuples(st.just("length"), late),
}
accesses = st.one_of(ACCESSES["read"], ACCESSES["write"], *ACCESSES.values())
BRANCHES = {"cond": 2, "switch": 3}
CONSTRUCTS = (
    "scan", "unrolled scan", "reverse scan", "map", "fori_loop", "while_loop", "cond", "switch", "jit", "checkpoint", "custom_jvp",
    "custom_vjp", "custom_vmap", "custom_linear_solve", "associative_scan", "vmap", "grad", "jvp", "linearize", "hessian", "shard_map",
    "ref", "marked", "opaque",
)  # fmt: skip
CANNOT_CALL_BACK = {
    "checkpoint",
    "custom_jvp",
    "custom_vjp",
    "custom_linear_solve",
    "vmap",
    "grad",
    "jvp",
    "linearize",
    "hessian",
}
"""Constructs in which some version of JAX refuses the effect of an `io_callback` or of a native call."""
CANNOT_HOLD = {"ref": {"custom_jvp", "custom_linear_solve", "grad", "hessian"}, "shard_map": {"shard_map"}}
"""Constructs, and those in which some version of JAX fails on them."""


def constructs(kind, block):
    if kind in BRANCHES:
        return st.tuples(st.just(kind), st.integers(0, BRANCHES[kind] - 1), *[block] * BRANCHES[kind])
    return st.tuples(st.just(kind), st.integers(1, 3), block)


def blocks(statements, size):
    return st.lists(statements, min_size=1, max_size=size)


def any_construct(block):
    return st.sampled_from(CONSTRUCTS).flatmap(lambda kind: constructs(kind, block))


inner = blocks(st.one_of(accesses, accesses, any_construct(blocks(accesses, 2))), 3)
programs = blocks(st.one_of(accesses, any_construct(inner), any_construct(inner)), 5).map(
    lambda program: allowed(program)
)


def allowed(program, within=()):
    """The program as JAX takes it: some constructs refuse the effect of a callback, or others, inside of them."""
    found = []
    for kind, *rest in program:
        if kind in ("push", "push one") and CANNOT_CALL_BACK & set(within):
            kind, rest = "length", [0]
        if CANNOT_HOLD.get(kind, set()) & set(within):
            kind = "jit"
        found.append((kind, *(allowed(x, (*within, kind)) if isinstance(x, list) else x for x in rest)))
    return found


def of_class(kind):
    """Programs in which a construct of this kind has to be in order: a late read, the construct, and a read."""
    before, after = ("read", 0, LATEST), ("read", 0, 0)
    body = st.tuples(
        st.just(("write", 0, 0)), accesses.filter(lambda one: one[0] in ("read", "write")), st.just(("read", 0, LATEST))
    )
    construct = constructs(kind, body.map(list))
    return construct.map(lambda one: allowed([before, one, ("write", 0, 0), after]))


class _Run:
    """One trace of a program."""

    def __init__(self, tokens, x, facts):
        self.tokens = tokens
        self.facts = facts
        self.numbers = itertools.count()
        self.delayed = [x]
        for i in range(LATEST):
            self.delayed.append(jnp.sort(self.delayed[-1] ^ (i + 1)))

    def block(self, block, step=0.0):
        """What the block reads, as one number."""
        seen, last = jnp.float32(0), jnp.float32(0)
        for kind, *rest in block:
            i = next(self.numbers)
            value = self.access(i, kind, last, step, *rest)
            if value is None:
                value = self.construct(i, kind, step, *rest)
            elif kind == "read":
                last = value
            seen = (seen * 31 + value) % 8191
        return seen

    def access(self, i, kind, last, step, *rest):
        match kind, *rest:
            case "read", obj, late:
                read = read_slot if obj < 2 else read_whole
                return read(self.tokens[obj], self.delayed[late], f"s{i}")
            case "write", obj, late:
                zero = jnp.minimum(self.delayed[late][0], 0)  # which XLA cannot know
                return self._write(obj, i + 50 * step + zero, i)
            case "copy", obj:
                return self._write(obj, last + 1, i)
            case "push", late:
                push_without_result((i + 50 * step + jnp.minimum(self.delayed[late][0], 0)).astype(jnp.float32))
                return jnp.float32(0)
            case "push one", *_:
                return push_without_operand()
            case "length", late:
                return read_queue(self.delayed[late])
        return None

    def _write(self, obj, value, i):
        write = write_slot if obj < 2 else write_whole
        return write(self.tokens[obj], value, f"s{i}").astype(jnp.float32)

    def construct(self, i, kind, step, *rest):
        return getattr(self, "_" + kind.split()[-1])(i, kind, step, *rest)

    def _scan(self, i, kind, step, count, body):
        _, seen = jax.lax.scan(
            lambda carry, k: (carry, self.block(body, step + k)),
            0,
            jnp.arange(1.0, count + 1),
            reverse=kind.startswith("reverse"),
            unroll=2 if kind.startswith("unrolled") else 1,
        )
        return _mixed(seen)

    def _map(self, i, kind, step, count, body):
        return _mixed(jax.lax.map(lambda k: self.block(body, step + k), jnp.arange(1.0, count + 1)))

    def _fori_loop(self, i, kind, step, count, body):
        # XLA does not know how often, so it cannot unroll.
        once = lambda k, seen: (seen * 17 + self.block(body, step + k)) % 8191
        return jax.lax.fori_loop(0, self.facts[0] * count, once, jnp.float32(0))

    def _while_loop(self, i, kind, step, count, body):
        def go(state):
            k, _ = state
            seen = read_slot(self.tokens[0], self.delayed[1], f"c{i}")
            write_slot(self.tokens[1], k + 1, f"c{i}")
            return (k < self.facts[0] * count) & (seen > -1)

        def once(state):
            k, seen = state
            return k + 1, (seen * 17 + self.block(body, step + k)) % 8191

        k, seen = jax.lax.while_loop(go, once, (jnp.float32(0), jnp.float32(0)))
        return seen + k

    def _cond(self, i, kind, step, taken, *bodies):
        return jax.lax.cond(self.facts[taken] > 0, *(functools.partial(self.block, body, step) for body in bodies))

    def _switch(self, i, kind, step, taken, *bodies):
        return jax.lax.switch(self.facts[0] + taken - 1, [functools.partial(self.block, body, step) for body in bodies])

    def _jit(self, i, kind, step, count, body):
        return jax.jit(lambda: self.block(body, step))()

    def _checkpoint(self, i, kind, step, count, body):
        return jax.checkpoint(lambda step: self.block(body, step))(jnp.float32(step))

    def _custom_jvp(self, i, kind, step, count, body):
        f = jax.custom_jvp(lambda step: self.block(body, step))
        f.defjvp(lambda primals, tangents: (f(*primals), tangents[0]))
        return f(jnp.float32(step))

    def _custom_vjp(self, i, kind, step, count, body):
        f = jax.custom_vjp(lambda step: self.block(body, step))
        f.defvjp(lambda step: (f(step), None), lambda _, cotangent: (cotangent,))
        return f(jnp.float32(step))

    def _custom_vmap(self, i, kind, step, count, body):
        f = jax.custom_batching.custom_vmap(lambda step: self.block(body, step))
        f.def_vmap(lambda size, batched, step: (step, batched[0]))
        return f(jnp.float32(step))

    def _custom_linear_solve(self, i, kind, step, count, body):
        solve = lambda _, b: b / 2 + self.block(body, step)
        return jax.lax.custom_linear_solve(lambda x: 2 * x, jnp.float32(count), solve, solve)

    def _associative_scan(self, i, kind, step, count, body):
        return _mixed(jax.lax.associative_scan(lambda a, b: a + b + self.block(body, step), jnp.arange(1.0, count + 2)))

    def _vmap(self, i, kind, step, count, body):
        # The calls are not batched, or the elements' writes would be in no order.
        return _mixed(jax.vmap(lambda k: k + self.block(body, step))(jnp.arange(1.0, count + 1)))

    def _grad(self, i, kind, step, count, body):
        return jax.grad(lambda z: z * z * self.block(body, step))(self._one())

    def _jvp(self, i, kind, step, count, body):
        return sum(jax.jvp(lambda z: z * self.block(body, step), (self._one(),), (self._one(),)))

    def _linearize(self, i, kind, step, count, body):
        value, linear = jax.linearize(lambda z: z * z * self.block(body, step), self._one())
        return value + linear(self._one())

    def _hessian(self, i, kind, step, count, body):
        return jax.hessian(lambda z: z * z * z * self.block(body, step))(self._one())

    def _shard_map(self, i, kind, step, count, body):
        mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])
        everywhere = PartitionSpec()

        def sharded(tokens, delayed, facts, step):
            run = _Run.__new__(_Run)
            run.tokens, run.facts, run.numbers, run.delayed = tokens, facts, self.numbers, list(delayed)
            return run.block(body, step)

        f = jax.shard_map(sharded, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=count > 1)
        return f(tuple(self.tokens), tuple(self.delayed), self.facts, jnp.float32(step))

    def _ref(self, i, kind, step, count, body):
        ref = jax.new_ref(jnp.zeros(count))
        ref[0] = self.block(body, step)
        return ref[0]

    def _marked(self, i, kind, step, count, body):
        """Everything in it is a write of the queue too."""
        return writes("law.queue")(lambda: self.block(body, step))()

    def _opaque(self, i, kind, step, count, body):
        """Everything in it is one write of the queue."""
        return writes("law.queue", opaque=True)(lambda: self.block(body, step))()

    def _one(self):
        return jnp.float32(1) + jnp.minimum(self.delayed[0][0], 0)


def _mixed(seen):
    return jnp.sum(seen * jnp.arange(1.0, len(seen) + 1)) % 8191


def function_of(program):
    """A function of `arguments()`: what the program reads, and the rest of the work, which runs beside it."""

    def run(tokens, x, facts):
        one = _Run([tokens[i] for i in range(3)], x, facts)
        seen = one.block(program)
        y = one.delayed[-1]
        for _ in range(3):
            y = jnp.sort(y ^ 1)
        return seen, y

    return run


def arguments():
    return jnp.asarray(TOKENS), jnp.asarray(X), jnp.asarray([1, 0], jnp.int32)


# The law: what a plain Python interpretation of the jaxpr gives.
def interpret(jaxpr, consts, args, slots):
    """The results of a jaxpr, with `slots` as the native slots and what is written to them in `slots.log`."""
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    read = lambda atom: atom.val if hasattr(atom, "val") else values[atom]
    for eqn in jaxpr.eqns:
        outs = _step(eqn, [read(v) for v in eqn.invars], slots)
        values |= dict(zip(eqn.outvars, outs, strict=True))
    return [read(v) for v in jaxpr.outvars]


class Slots:
    def __init__(self):
        self.values = {}
        self.log = []

    def call(self, target, token, *rest):
        if target == testing.READ_TARGET:
            return jnp.float32(self.values.get(int(token), 0.0))
        self.values[int(token)] = float(rest[0])
        self.log.append((int(token), float(rest[0])))
        return token


def _closed(jaxpr):
    return (jaxpr.jaxpr, jaxpr.consts) if hasattr(jaxpr, "jaxpr") else (jaxpr, getattr(jaxpr, "consts", ()))


def _step(eqn, ins, slots):
    params = eqn.params
    inner = lambda jaxpr, args: interpret(*_closed(jaxpr), args, slots)
    match eqn.primitive.name:
        case "ffi_call" if params["target_name"] in (testing.READ_TARGET, testing.WRITE_TARGET):
            return [slots.call(params["target_name"], *ins)]
        case "jit" | "pjit" | "remat2" | "checkpoint" | "closed_call" | "shard_map":
            return inner(params["jaxpr"], ins)
        case "custom_jvp_call" | "custom_vjp_call":
            return inner(params["call_jaxpr"], ins)
        case "custom_vmap_call":
            return inner(params["call"], ins)
        case "custom_linear_solve":
            lengths = params["const_lengths"]
            start = lengths.matvec + lengths.vecmat
            return inner(params["jaxprs"].solve, [*ins[start : start + lengths.solve], ins[-1]])
        case "cond":
            return inner(params["branches"][int(ins[0])], ins[1:])
        case "while":
            a, b = params["cond_nconsts"], params["body_nconsts"]
            of_condition, of_body, carry = ins[:a], ins[a : a + b], ins[a + b :]
            while inner(params["cond_jaxpr"], [*of_condition, *carry])[0]:
                carry = inner(params["body_jaxpr"], [*of_body, *carry])
            return carry
        case "scan":
            return _scan(params, ins, inner)
    bound = eqn.primitive.get_bind_params(params)
    subfuns, bound = bound if isinstance(bound, tuple) else ((), bound)
    outs = eqn.primitive.bind(*subfuns, *ins, **bound)
    outs = jax.block_until_ready(outs)
    return list(outs) if eqn.primitive.multiple_results else [outs]


def _scan(params, ins, inner):
    if "ft_in" in params:
        consts, carry = (len(list(part)) for part in list(params["ft_in"].unpack())[:2])
    else:
        consts, carry = params["num_consts"], params["num_carry"]
    those, state, xs = ins[:consts], ins[consts : consts + carry], ins[consts + carry :]
    order = range(params["length"])
    ys = {}
    for k in reversed(order) if params["reverse"] else order:
        results = inner(params["jaxpr"], [*those, *state, *(x[k] for x in xs)])
        state, ys[k] = results[:carry], results[carry:]
    return [*state, *(jnp.stack([ys[k][i] for k in order]) for i in range(len(ys[0])))]


def by_object(log):
    """What was written, object by object."""
    return {slot: [value for one, value in log if one == slot] for slot in {one for one, _ in log}}


def expected(program):
    """The result, the writes of each slot, and the queue, as the text says."""
    args = arguments()
    jaxpr, consts = _closed(jax.make_jaxpr(function_of(program))(*args))
    slots = Slots()
    QUEUE.clear()
    (seen, _) = interpret(jaxpr, consts, jax.tree.leaves(args), slots)
    queue = list(QUEUE)
    QUEUE.clear()
    return float(seen), by_object(slots.log), queue


def observed(compiled):
    """The same of one run of a compiled program."""
    testing.reset()
    QUEUE.clear()
    seen, _ = jax.block_until_ready(compiled(*arguments()))
    jax.effects_barrier()
    written = [(access.slot, access.value) for access in testing.log() if access.op == "write"]
    return float(seen), by_object(written), list(QUEUE)
