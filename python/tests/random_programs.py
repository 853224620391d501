"""Random programs of native accesses, for the audit: some in order, some not, made from a number.

The arguments are handles of different objects, as the audit takes them to be, and none of them is a constant of the
program: arguments are slots 1 to 6, constants are 7 and above. Everything else that two handles may have in common is in
here: elements, tables, choices, arithmetic, conversions, loops, callbacks, and on several devices collectives.
"""

import random

import delays
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from entangle_jax import Handle, entangle, testing

NOISE = delays.numbers(3_000)


def arguments():
    """Two handles, four in an array, an index, a predicate, a number of trips (none, and two), and work for delays."""
    return (
        jnp.int32(5),
        jnp.int32(6),
        jnp.arange(1, 5, dtype=jnp.int32),
        jnp.int32(2),
        jnp.bool_(True),
        jnp.int32(0),
        jnp.int32(2),
        jnp.asarray(NOISE),
    )


def program(number):
    """A function of `arguments()`. It returns all that was read, and the handles that are left."""

    def function(*args):
        return _Writer(random.Random(number), args).write()

    return function


TABLE = np.array([7, 9, 8, 7], np.int32)

HANDLES = {
    "a": lambda w: w.a,
    "b": lambda w: w.b,
    "element": lambda w: w.slots[w.rng.randrange(4)],
    "element at run time": lambda w: w.slots[w.i],
    "constant": lambda w: testing.slot(w.rng.choice([7, 8, 9])),
    "table": lambda w: jnp.asarray(TABLE)[w.rng.randrange(4)],
    "table at run time": lambda w: jnp.asarray(TABLE)[w.i],
    "counted": lambda w: jnp.arange(7, 11, dtype=jnp.int32)[w.i],
    "added to a table": lambda w: jnp.arange(4, dtype=jnp.int32).at[w.i].add(5)[w.i],
    "put into a table": lambda w: jnp.full(4, 7, jnp.int32).at[w.i].set(w.a)[w.rng.randrange(4)],
    "chosen": lambda w: jnp.where(w.p, w.handle(), w.handle()),
    "chosen constants, converted": lambda w: jnp.where(w.p, jnp.int16(9), jnp.int16(8)).astype(jnp.int32),
    "chosen and added": lambda w: jnp.where(w.p, 5, w.b) + w.zero,
    "plus zero": lambda w: w.handle() + 0,
    "plus zero at run time": lambda w: w.handle() + w.zero,
    "the next": lambda w: w.handle() + 1,
    "at least": lambda w: jnp.maximum(w.handle(), w.handle()),
    "clipped": lambda w: jnp.clip(w.handle(), 3, 8),
    "a small type": lambda w: w.handle().astype(jnp.int8).astype(jnp.int32),
    "a float": lambda w: w.handle().astype(jnp.float32).astype(jnp.int32),
    "largest": lambda w: jnp.argmax(w.slots) + 6,
    "top": lambda w: lax.top_k(w.slots, 2)[0][1],
    "top of constants": lambda w: lax.top_k(jnp.where(w.p, jnp.asarray(TABLE), 8), 2)[0][0],
    "count": lambda w: 5 + jnp.sum(w.slots > 3, dtype=jnp.int32),
    "sum": lambda w: jnp.sum(jnp.where(w.slots == 2, w.slots, 0), dtype=jnp.int32),
    "rolled": lambda w: jnp.roll(w.slots, w.i)[w.rng.randrange(4)],
    "sorted": lambda w: jnp.sort(w.slots)[w.rng.randrange(4)],
    "searched": lambda w: 7 + jnp.searchsorted(jnp.asarray([1, 3, 5]), w.i).astype(jnp.int32),
    "counter": lambda w: lax.fori_loop(0, 2, lambda i, h: h + 1, jnp.int32(7)),
    "carried": lambda w: lax.fori_loop(0, w.two, lambda i, h: jnp.where(i == 1, w.a, h), w.handle()),
    "swapped": lambda w: lax.fori_loop(0, w.two, lambda i, s: (s[1], s[0]), (w.handle(), w.handle()))[0],
    "of a branch": lambda w: lax.cond(w.p, lambda: w.handle(), lambda: w.handle()),
    "of a callback": lambda w: jax.pure_callback(
        lambda h: np.asarray(h, np.int32), jax.ShapeDtypeStruct((), jnp.int32), w.handle(), vmap_method="sequential"
    ),
    "behind a barrier": lambda w: lax.optimization_barrier((w.handle(), w.zero))[0],
    "behind batching": lambda w: jax.vmap(lambda s: s + w.zero)(w.slots)[w.rng.randrange(4)],
    "summed over a batch": lambda w: jax.vmap(lambda s: lax.psum(1, "x"), axis_name="x", axis_size=4)(w.slots)[0] + 4,
    "moved over a batch": lambda w: jax.vmap(
        lambda s: lax.ppermute(s, "x", [(0, 1), (1, 2), (2, 3), (3, 0)]), axis_name="x"
    )(w.slots)[1],
}


class _Writer:
    """Writes one program: `env` is what is known at one place of it."""

    def __init__(self, rng, args):
        self.rng = rng
        self.a, self.b, self.slots, self.i, self.p, self.zero, self.two, self.noise = args
        self.depth = 0
        self.calls = 0
        self.known, self.values, self.seen = [self.a, self.b], [], []

    def write(self):
        for _ in range(self.rng.randint(2, 6)):
            self.statement()
        return self.seen, self.known[-2:]

    def handle(self):
        """Any handle, made or known."""
        self.depth += 1
        if self.depth > 3 or self.rng.random() < 0.6:
            handle = self.rng.choice(self.known) if self.rng.random() < 0.7 else self.rng.choice([self.a, self.b])
        else:
            makers = HANDLES | self.more_handles()
            handle = jnp.asarray(makers[self.rng.choice(list(makers))](self), jnp.int32)
        self.depth -= 1
        return handle

    def late(self):
        x = self.noise
        for i in range(self.rng.randrange(4)):
            x = jnp.sort(x ^ (i + self.rng.randrange(99)))
        return x

    def statement(self, *, nested=True):
        kinds = ["read", "read", "write", "tie", "tie", "barrier", "handle"]
        if nested and self.calls < 6:
            kinds += ["loop", "loop", "branch", "jit", "checkpoint", "batch", "derivative"]
        getattr(self, f"_{self.rng.choice([*kinds, *self.more_statements()])}")()

    def more_statements(self):
        """The names of statements of special programs."""
        return ()

    def more_handles(self):
        """Likewise of handles: as `HANDLES`."""
        return {}

    def _read(self):
        self.calls += 1
        value = testing.read(self.handle(), *([self.late()] if self.rng.random() < 0.5 else []))
        self.values.append(value)
        self.seen.append(value)

    def _write(self):
        self.calls += 1
        value = jnp.float32(self.calls)
        if self.rng.random() < 0.4:
            value = value + (self.late()[0] >> 31).astype(jnp.float32)
        handle = self.handle()
        if self.values and self.rng.random() < 0.6:
            handle = entangle(handle, *self.values)
        token = testing.write(handle, value)
        self.values.append(token)
        if self.rng.random() < 0.7:
            self.known.append(token)
            if self.rng.random() < 0.6:  # every handle that is known comes after it
                self.a, self.b, self.slots = entangle((self.a, self.b, self.slots), token)
                self.known = [entangle(known, token) for known in self.known]

    def _tie(self):
        if self.values:
            witnesses = self.values if self.rng.random() < 0.6 else [self.rng.choice(self.values)]
            self.a, self.b, self.slots = entangle((self.a, self.b, self.slots), *witnesses)
            self.known = [entangle(known, *witnesses) for known in self.known]

    def _barrier(self):
        if self.values:
            self.known.append(lax.optimization_barrier((self.handle(), self.rng.choice(self.values)))[0])

    def _handle(self):
        self.known.append(self.handle())

    def _nested(self, carried, count):
        """Statements in a computation of its own. Returns what it hands on: a handle, a value, and what was read."""
        outer = (self.a, self.b, self.slots, list(self.known), list(self.values), list(self.seen))
        handle, value, total = carried
        self.known, self.values, self.seen = [*self.known, handle, handle], [*self.values, value], []
        for _ in range(count):
            self.statement(nested=self.depth < 2)
        handle, values = self.rng.choice([self.known[-1], self.known[-1], handle]), self.values
        value = self.rng.choice(
            [
                value,
                values[-1],
                sum(jnp.asarray(one, jnp.float32) for one in values[-2:]),
                lax.optimization_barrier(value),
            ]
        )
        value = jnp.asarray(value, jnp.float32)
        if self.rng.random() < 0.5:
            handle = entangle(handle, *values)
        # What was read is needed by the results, or there is no read.
        total = total + sum((jnp.sum(one) for one in self.seen), jnp.float32(0))
        self.a, self.b, self.slots, self.known, self.values, self.seen = outer
        return jnp.asarray(handle, jnp.int32), value, total

    def _hand_on(self, handle, value, total):
        self.known += [handle]
        self.values.append(value)
        self.seen += [value, total]

    def _start(self):
        value = self.rng.choice([jnp.float32(1), *[jnp.asarray(value, jnp.float32) for value in self.values]])
        return self.handle(), value, jnp.float32(0)

    def _loop(self):
        self.depth += 1
        count = self.rng.randint(1, 3)
        kind, state = self.rng.choice(["fori", "zero", "traced", "scan", "while"]), self.rng.getstate()

        def body(carried):
            self.rng.setstate(state)  # a body may be traced more than once
            return self._nested(carried, count)

        start = self._start()
        calls = self.calls
        match kind:
            case "fori":
                end = lax.fori_loop(0, 2, lambda _, c: body(c), start)
            case "zero":
                end = lax.fori_loop(0, self.zero, lambda _, c: body(c), start)
            case "traced":
                end = lax.fori_loop(0, self.two, lambda _, c: body(c), start)
            case "scan":
                end, _ = lax.scan(lambda c, _: (body(c), None), start, length=2)
            case "while":
                _, end = lax.while_loop(
                    lambda c: c[0] < self.two, lambda c: (c[0] + 1, body(c[1])), (jnp.int32(0), start)
                )
        self.calls = max(calls, self.calls)
        self._hand_on(*end)
        self.depth -= 1

    def _branch(self):
        self.depth += 1
        counts = self.rng.randint(0, 2), self.rng.randint(0, 2)
        predicate = self.rng.choice([self.p, ~self.p, *[jnp.asarray(value) > 2 for value in self.values]])
        start = self._start()
        end = lax.cond(predicate, *(lambda *c, n=n: self._nested(c, n) for n in counts), *start)
        self._hand_on(*end)
        self.depth -= 1

    def _jit(self):
        self.depth += 1
        self._hand_on(*jax.jit(lambda *c: self._nested(c, 2))(*self._start()))
        self.depth -= 1

    def _checkpoint(self):
        self.depth += 1
        self._hand_on(*jax.checkpoint(lambda *c: self._nested(c, 2))(*self._start()))
        self.depth -= 1

    def _batch(self):
        self.calls += 1
        if self.rng.random() < 0.6:
            values = jax.vmap(testing.read)(self.slots)
        else:
            values = jax.vmap(lambda t, x: testing.write(t, x))(
                jnp.stack([self.handle(), self.handle()]), jnp.float32([self.calls, self.calls])
            )
        self.seen.append(values)
        self.values.append(values.sum())

    def _derivative(self):
        witness = self.rng.choice([jnp.float32(1), *self.values])
        handle = self.handle()

        def function(x):
            y = entangle(x * x, witness)
            return y * testing.read(entangle(handle, y))

        value, slope = jax.value_and_grad(function)(jnp.float32(2))
        self.calls += 1
        self._hand_on(handle, value, slope)


# Programs on several devices, each of which has slots of its own: collectives among handles and values.

DEVICES = 4
AXIS = "devices"


def device_arguments():
    """As `arguments()`, with handles that are other ones on each device."""
    a, b, slots, *rest = arguments()
    first = 10 * jnp.arange(1, DEVICES + 1, dtype=jnp.int32)
    mesh = _mesh()
    on_each = [first + a, first + b, first[:, None] + slots]
    return (
        *(jax.device_put(value, NamedSharding(mesh, PartitionSpec(AXIS))) for value in on_each),
        *(jax.device_put(value, NamedSharding(mesh, PartitionSpec())) for value in rest),
    )


def device_program(number):
    """A function of `device_arguments()`, whose results have one element for each device."""

    def function(*args):
        def on_each(a, b, slots, *rest):
            results = _DeviceWriter(random.Random(number), (a[0], b[0], slots[0], *rest)).write()
            return jax.tree.map(lambda value: jnp.asarray(value)[None], results)

        of_device, same = PartitionSpec(AXIS), PartitionSpec()
        specs = (of_device,) * 3 + (same,) * (len(args) - 3)
        return jax.shard_map(on_each, mesh=_mesh(), in_specs=specs, out_specs=of_device, check_vma=False)(*args)

    return function


def _mesh():
    return jax.make_mesh((DEVICES,), (AXIS,), axis_types=(jax.sharding.AxisType.Auto,))


ROUND = [(device, (device + 1) % DEVICES) for device in range(DEVICES)]
COLLECTIVES = {
    "summed": lambda x: lax.psum(x, AXIS),
    "largest": lambda x: lax.pmax(x, AXIS),
    "of the device before": lambda x: lax.ppermute(x, AXIS, ROUND),
    "of a device or zero": lambda x: lax.ppermute(x, AXIS, ROUND[:2]),
    "gathered": lambda x: lax.all_gather(x, AXIS)[1],
    "scattered sum": lambda x: lax.psum_scatter(jnp.broadcast_to(x, (DEVICES,)), AXIS),
    "scattered": lambda x: lax.all_to_all(jnp.broadcast_to(x, (DEVICES,)), AXIS, 0, 0, tiled=True)[2],
}
DEVICE_HANDLES = {
    **{name: lambda w, make=make: make(w.handle()) for name, make in COLLECTIVES.items()},
    "the number of devices": lambda w: lax.psum(1, AXIS) + 5,
    "counted over devices": lambda w: lax.psum(jnp.where(w.p, 1, w.zero), AXIS) + 4,
    "the device": lambda w: lax.axis_index(AXIS) + 7,
    "of the device, of a table": lambda w: jnp.asarray(TABLE)[lax.axis_index(AXIS)],
    "on one device": lambda w: jnp.where(lax.axis_index(AXIS) == 1, w.handle(), w.handle()),
}


class _DeviceWriter(_Writer):
    """What decides a branch may differ among devices: no collective may be in there, or a device waits for ever."""

    together = True

    def more_statements(self):
        return ("collective",) * 3 if self.together else ()

    def more_handles(self):
        return DEVICE_HANDLES if self.together else {}

    def _collective(self):
        if self.values:
            value = jnp.asarray(self.rng.choice(self.values), jnp.float32)
            self.values.append(COLLECTIVES[self.rng.choice(list(COLLECTIVES))](value))

    def _branch(self):
        before, self.together = self.together, False
        super()._branch()
        self.together = before


# Right programs, through `Handle` alone.


def handle_arguments():
    """Two handles, the number of a slot, numbers of trips (none, and two), and work for delays."""
    return (
        Handle(testing.slot(1)),
        Handle(testing.slot(2)),
        jnp.arange(3, 5, dtype=jnp.int32),
        jnp.int32(0),
        jnp.int32(2),
        jnp.asarray(NOISE),
    )


def handle_program(number):
    """A right function of `handle_arguments()`. It returns all that was read, and the handles that are left."""

    def function(*args):
        return _HandleWriter(random.Random(number), args).write()

    return function


class _HandleWriter:
    def __init__(self, rng, args):
        self.rng = rng
        a, b, slots, self.zero, self.two, self.noise = args
        # An argument, an element of one, a constant: three kinds of object.
        self.handles = (a, b, Handle(slots[1]), Handle(testing.slot(7)))
        self.total = jnp.float32(0)
        self.calls = 0

    def write(self):
        for _ in range(self.rng.randint(3, 8)):
            self.statement(0)
        return self.total, self.handles[:2]

    def late(self):
        x = self.noise
        for i in range(self.rng.randrange(4)):
            x = jnp.sort(x ^ (i + self.rng.randrange(99)))
        return x

    def statement(self, depth):
        kinds = ["read", "read", "write"]
        if depth < 3 and self.calls < 9:
            kinds += ["loop", "loop", "branch", "jit", "checkpoint"]
        kind = self.rng.choice(kinds)
        if kind in {"read", "write"}:
            self.access(kind)
        else:
            getattr(self, f"_{kind}")(depth)

    def access(self, kind):
        self.calls += 1
        handles, which = list(self.handles), self.rng.randrange(4)
        if kind == "read":
            rest = [self.late()] if self.rng.random() < 0.6 else []
            value, handles[which] = handles[which].read(testing.read, *rest)
            self.total = self.total + value
        else:
            value = jnp.float32(self.calls) + (self.late()[0] >> 31).astype(jnp.float32)
            _, handles[which] = handles[which].write(testing.write, value)
        self.handles = tuple(handles)

    def block(self, depth, state):
        """A function of the handles and the total, to the same."""
        count = self.rng.randint(1, 3)

        def body(handles, total):
            self.rng.setstate(state)  # a body may be traced more than once
            outer = self.handles, self.total
            self.handles, self.total = handles, total
            for _ in range(count):
                self.statement(depth + 1)
            result, (self.handles, self.total) = (self.handles, self.total), outer
            return result

        return body

    def _loop(self, depth):
        kind = self.rng.choice(["fori", "none", "traced", "zero", "scan", "while"])
        body = self.block(depth, self.rng.getstate())
        start = (self.handles, self.total)
        trips = {"fori": 2, "none": 0, "traced": self.two, "zero": self.zero}
        if kind in trips:
            end = lax.fori_loop(0, trips[kind], lambda _, c: body(*c), start)
        elif kind == "scan":
            end, _ = lax.scan(lambda c, _: (body(*c), None), start, length=2)
        else:
            _, end = lax.while_loop(lambda c: c[0] < self.two, lambda c: (c[0] + 1, body(*c[1])), (jnp.int32(0), start))
        self.handles, self.total = end

    def _branch(self, depth):
        one = self.block(depth, self.rng.getstate())
        other = self.block(depth, self.rng.getstate()) if self.rng.random() < 0.5 else lambda *c: c
        predicate = self.total > 2 if self.rng.random() < 0.5 else self.two > 1
        self.handles, self.total = lax.cond(predicate, one, other, self.handles, self.total)

    def _jit(self, depth):
        self.handles, self.total = jax.jit(self.block(depth, self.rng.getstate()))(self.handles, self.total)

    def _checkpoint(self, depth):
        self.handles, self.total = jax.checkpoint(self.block(depth, self.rng.getstate()))(self.handles, self.total)
