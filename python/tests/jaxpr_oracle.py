"""Runs a jaxpr as it is written, on numbers, and says which native accesses come after which by data.

An oracle for the audit, which shares no code with it and looks at nothing that XLA made: every value is a concrete array
with the set of accesses that it was made from. A slot is a number here, so two handles are one object if their numbers are
equal, and what was accessed in one run is known, not guessed. Inside of `shard_map` each device runs in a thread of its own,
and its slots are its own.
"""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import jax
import numpy as np

from entangle_jax import testing


@dataclass(frozen=True)
class Access:
    """One access of one slot."""

    number: int
    writes: bool
    slot: tuple
    """The device and the number."""
    after: frozenset


@dataclass(eq=False)
class Value:
    """An array, and the accesses that it was made from. One object is passed on as it is where nothing is computed."""

    array: object
    after: frozenset = frozenset()


@dataclass
class Run:
    """What happened in one run."""

    slots: dict = field(default_factory=dict)
    accesses: list = field(default_factory=list)

    def races(self):
        """Pairs of accesses to one slot, of which one writes, with no data from one to the other."""
        return [
            (a, b)
            for a, b in itertools.combinations(self.accesses, 2)
            if a.slot == b.slot and (a.writes or b.writes) and a.number not in b.after
        ]

    def writes(self):
        """The values that were written to the slots of each number, in order."""
        return {number: values for (_, number), values in self._writes.items() if values}

    def devices_meet(self):
        """Whether two devices access slots of one number, which are one slot of a process, and one of them writes."""
        devices, written = {}, {number for _, number in self._writes}
        for access in self.accesses:
            device, number = access.slot
            devices.setdefault(number, set()).add(device)
        return any(len(devices[number]) > 1 for number in written)

    def __post_init__(self):
        self._writes = {}
        self._lock = threading.Lock()

    def access(self, device, writes, token, after, value=0.0):
        """Read or write the slot of a token."""
        slot = (device, int(token))
        with self._lock:
            access = Access(len(self.accesses), writes, slot, after)
            self.accesses.append(access)
            if writes:
                self.slots[slot] = np.float32(value)
                self._writes.setdefault(slot, []).append(float(value))
            return self.slots.get(slot, np.float32(0)), after | {access.number}


def run(function, *arguments):
    """The flat results of a function on these arguments, and what happened."""
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    jaxpr, consts = _open(closed)
    happened = Run()
    values = [Value(leaf) for leaf in jax.tree.leaves(arguments)]
    results = _Interpreter(happened).jaxpr(jaxpr, consts, values, frozenset())
    del shapes
    return [np.asarray(value.array) for value in results], happened


def _open(jaxpr):
    return (jaxpr.jaxpr, jaxpr.consts) if hasattr(jaxpr, "jaxpr") else (jaxpr, getattr(jaxpr, "consts", ()))


class _Meeting:
    """Where the devices of a mesh with one axis exchange values."""

    def __init__(self, axis, devices):
        self.axis = axis
        self.values = [None] * devices
        self.barrier = threading.Barrier(devices)

    def exchange(self, device, value):
        """The values of all devices."""
        self.values[device] = value
        self.barrier.wait(timeout=60)
        values = list(self.values)
        self.barrier.wait(timeout=60)
        return values


class _Interpreter:
    def __init__(self, happened, device=0, meeting=None):
        self.happened, self.device, self.meeting = happened, device, meeting

    def jaxpr(self, jaxpr, consts, arguments, guard):
        """`guard`: the accesses that decided that this runs at all."""
        known = {}
        for variable, constant in zip(jaxpr.constvars, consts, strict=True):
            known[variable] = Value(constant)
        known.update(zip(jaxpr.invars, arguments, strict=True))

        def of(atom):
            return Value(atom.val) if hasattr(atom, "val") else known[atom]

        for eqn in jaxpr.eqns:
            operands = [of(atom) for atom in eqn.invars]
            known.update(zip(eqn.outvars, self.equation(eqn, operands, guard), strict=True))
        return [of(atom) for atom in jaxpr.outvars]

    def inner(self, jaxpr, operands, guard):
        return self.jaxpr(*_open(jaxpr), operands, guard)

    def equation(self, eqn, operands, guard):
        name, params = eqn.primitive.name, eqn.params
        rule = getattr(self, f"_{name}", None)
        if rule is not None:
            return rule(params, operands, guard)
        if name in COLLECTIVES:
            return self.collective(eqn, operands)
        for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
            if key in params:
                assert name in KNOWN_CALLS, name
                return self.inner(params[key], operands, guard)
        after = frozenset().union(*(operand.after for operand in operands))
        results = eqn.primitive.bind(*(operand.array for operand in operands), **params)
        return [Value(result, after) for result in (results if eqn.primitive.multiple_results else [results])]

    def _ffi_call(self, params, operands, guard):
        after = guard.union(*(operand.after for operand in operands))
        token = operands[0].array
        if params["target_name"] == testing.READ_TARGET:
            value, after = self.happened.access(self.device, False, token, after)
            return [Value(value, after)]
        assert params["target_name"] == testing.WRITE_TARGET
        _, after = self.happened.access(self.device, True, token, after, operands[1].array)
        return [Value(token, after)]

    def _shard_map(self, params, operands, guard):
        """On a mesh with one axis, which splits the first dimension of an array or none."""
        ((axis, devices),) = params["mesh"].shape.items()
        meeting = _Meeting(axis, devices)

        def run(device):
            def part(value, spec):
                array = np.asarray(value.array)
                return Value(np.split(array, devices)[device] if axis in spec else array, value.after)

            parts = [part(value, spec) for value, spec in zip(operands, params["in_specs"], strict=True)]
            try:
                return _Interpreter(self.happened, device, meeting).inner(params["jaxpr"], parts, guard)
            except BaseException:
                meeting.barrier.abort()
                raise

        with ThreadPoolExecutor(devices) as pool:
            of_devices = zip(*pool.map(run, range(devices)), strict=True)
        assert all(axis in spec for spec in params["out_specs"])
        return [
            Value(np.concatenate([value.array for value in values]), frozenset().union(*(v.after for v in values)))
            for values in of_devices
        ]

    def collective(self, eqn, operands):
        """What a device gets, it gets after all that was made of its own operand, and of those that are sent to it."""
        everyone = self.meeting.exchange(self.device, operands)
        arrays = [np.stack([np.asarray(value.array) for value in values]) for values in zip(*everyone, strict=True)]
        after = frozenset().union(*(value.after for values in everyone for value in values))
        results = jax.vmap(lambda *x: eqn.primitive.bind(*x, **eqn.params), axis_name=self.meeting.axis)(*arrays)
        results = results if eqn.primitive.multiple_results else [results]
        return [Value(np.asarray(result)[self.device], after) for result in results]

    def _ppermute(self, params, operands, _):
        everyone = self.meeting.exchange(self.device, operands)
        (own,) = operands
        sent = [everyone[sender][0] for sender, receiver in params["perm"] if receiver == self.device]
        array = sent[0].array if sent else np.zeros_like(np.asarray(own.array))
        return [Value(array, own.after.union(*(value.after for value in sent)))]

    def _axis_index(self, _, __, ___):
        return [Value(np.int32(self.device))]

    def _pure_callback(self, params, operands, _):
        after = frozenset().union(*(operand.after for operand in operands))
        flat = jax.tree.leaves(params["callback"](*(np.asarray(operand.array) for operand in operands)))
        return [Value(np.asarray(leaf), after) for leaf in flat]

    def _entangle(self, params, operands, _):
        payload = operands[: params["n"]]
        after = frozenset().union(*(operand.after for operand in operands))
        return [Value(operand.array, after) for operand in payload]

    def _optimization_barrier(self, _, operands, __):
        return operands  # XLA removes it

    def _stop_gradient(self, _, operands, __):
        return operands

    def _cond(self, params, operands, guard):
        index, *rest = operands
        results = self.inner(params["branches"][int(index.array)], rest, guard | index.after)
        # Where a branch computes a result, the choice has a part in it.
        return [
            one if any(one is other for other in rest) else Value(one.array, one.after | index.after) for one in results
        ]

    def _while(self, params, operands, guard):
        n, m = params["cond_nconsts"], params["body_nconsts"]
        cond, body, carry = operands[:n], operands[n : n + m], operands[n + m :]
        start = carry
        while True:
            (more,) = self.inner(params["cond_jaxpr"], [*cond, *carry], guard)
            guard = guard | more.after
            if not more.array:
                return [
                    one if any(one is other for other in start) else Value(one.array, one.after | more.after)
                    for one in carry
                ]
            carry = self.inner(params["body_jaxpr"], [*body, *carry], guard)

    def _scan(self, params, operands, guard):
        if "num_consts" in params:
            n, m = params["num_consts"], params["num_carry"]
        else:
            n, m = (len(list(part)) for part in list(params["ft_in"].unpack())[:2])
        consts, carry, xs = operands[:n], operands[n : n + m], operands[n + m :]
        steps = range(params["length"])
        rows = []
        for i in reversed(steps) if params["reverse"] else steps:
            results = self.inner(params["jaxpr"], [*consts, *carry, *(Value(x.array[i], x.after) for x in xs)], guard)
            carry = results[:m]
            rows.append(results[m:])
        if params["reverse"]:
            rows.reverse()
        stacked = [
            Value(
                np.stack([np.asarray(value.array) for value in column]), frozenset().union(*(v.after for v in column))
            )
            for column in zip(*rows, strict=True)
        ]
        return [*carry, *stacked]


COLLECTIVES = {"psum", "pmax", "all_gather", "reduce_scatter", "all_to_all"}
KNOWN_CALLS = {"jit", "pjit", "remat2", "checkpoint", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"}
