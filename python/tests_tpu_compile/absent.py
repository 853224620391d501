"""Compiles JAX programs for TPU chips that are not there, and reads what came out. Nothing is run."""

import functools
import math
import re

import compiled
import jax
import numpy as np
from jax.experimental import io_callback, topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec


@functools.cache
def chips():
    """Four compile-only chips of TPU v5e."""
    found = topologies.get_topology_desc("v5e:2x2", platform="tpu").devices
    assert len(found) == 4
    return found


def mesh_of(*axes, types=None):
    """A mesh of all chips; without axes a mesh of one."""
    if not axes:
        return Mesh(np.array(chips()[:1]), ("only",))
    shape = {1: (4,), 2: (2, 2)}[len(axes)]
    return Mesh(np.array(chips()).reshape(shape), axes, axis_types=types)


def array(*shape, dtype="float32", mesh=None, spec=(), memory_kind=None):
    """An argument to compile for."""
    sharding = NamedSharding(mesh or mesh_of(), PartitionSpec(*spec), memory_kind=memory_kind)
    return jax.ShapeDtypeStruct(shape, jax.numpy.dtype(dtype), sharding=sharding)


def compile_for_tpu(function, *arguments, **options):
    """The optimized, scheduled HLO of a function of arrays like these (see `array`)."""
    function = function if hasattr(function, "lower") else jax.jit(function, **options)
    return function.lower(*arguments).compile().as_text()


def kernels(hlo):
    """The calls that entangle stands for."""
    calls = compiled.native_calls(hlo, "tpu_custom_call")
    return [call for call in calls if re.search(r'op_name="[^"]*\bentangle"', call.text)]


def sizes(shapes):
    """How many elements the arrays of an HLO shape have: one array, or a tuple of them."""
    return [math.prod(map(int, dims.split(","))) if dims else 1 for dims in re.findall(r"\w+\[([\d,]*)\]", shapes)]


STATUS = jax.ShapeDtypeStruct((), np.int32)


def read(token, label):
    with jax.named_scope(f"call_{label}"):
        return jax.pure_callback(lambda t: t, STATUS, token)


def write(token, value, label):
    with jax.named_scope(f"call_{label}"):
        return io_callback(lambda t, v: t, STATUS, token, value)


def paths(hlo):
    """`{callback: callbacks it depends on}`, for those within a `jax.named_scope` that starts with `call_`."""
    return _Callbacks(compiled.parse(hlo)).run()


class _Callbacks(compiled.Interpreter):
    """A call of the host is a chain of sends and receives. It depends on what the first of them depends on, at least."""

    def step(self, each, operands, arguments, iteration):
        label = re.search(r'op_name="[^"]*\b(call_\w+)', each.text)
        if each.op not in ("send", "recv") or label is None:
            return super().step(each, operands, arguments, iteration)
        return self.labelled(label[1], compiled.everything(operands), iteration)
