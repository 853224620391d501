"""The lowering for TPU, which has no native handlers: an empty Mosaic kernel stands for the call.

XLA cannot look into a Mosaic kernel, so the kernel orders as a native handler does: each result has the memory of an
operand and depends on all operands. The kernel is given references and touches none of them. ::

    %r:2 = custom-call(%payload0, %payload1, %witness0), target="tpu_custom_call", results alias operands 0 and 1

XLA cannot split a kernel over devices. Where it would have to, and the types do not say how, the kernel gets one number
from each array, which depends on every element, and the payload is made to depend on the number that comes back.
"""

import dataclasses
import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import mlir
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from entangle_jax import _private
from entangle_jax._warnings import warn_user

_private.register_exclusion(__file__)


def lower(ctx: mlir.LoweringRuleContext, *operands: Any, n: int, shared: tuple[int, ...]) -> Any:
    """The lowering rule of `entangle` for TPU: operands, parameters and results are those of the primitive."""
    arrays = [i for i, aval in enumerate(ctx.avals_in) if aval is not _private.abstract_token]
    payload = [i for i in arrays if i < n]
    if len(arrays) < len(operands):
        warn_user(
            "an XLA token cannot be ordered on TPU, where no kernel takes one: it waits for nothing, and nothing waits "
            "for it. Entangle an array instead"
        )
    if not payload or (len(payload) == len(arrays) and not shared):
        return operands[:n]  # nothing that could wait, or nothing to wait for

    place = _place(ctx, [ctx.avals_in[i] for i in arrays])
    avals = [place.seen_as(ctx.avals_in[i]) for i in arrays]
    ctx_of_arrays = ctx.replace(avals_in=avals, avals_out=avals[: len(payload)])
    with jax.sharding.use_abstract_mesh(place.mesh):
        tied = mlir.lower_fun(functools.partial(_tie_on_device, place, len(payload)))(
            ctx_of_arrays, *(operands[i] for i in arrays)
        )
    results = list(operands[:n])
    for i, result in zip(payload, tied, strict=True):
        results[i] = _private.lower_with_sharding_in_types(ctx, result, ctx.avals_out[i])
    return results


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where in a program over several devices a call stands."""

    mesh: AbstractMesh
    """The devices that XLA would split the call over. Empty: each device makes a call of its own already."""
    specs: tuple[PartitionSpec, ...] | None
    """How the arrays are split over the mesh, if their types say so."""

    @property
    def axes(self) -> frozenset[Any]:
        """The axes of the mesh that are not manual yet."""
        return frozenset(self.mesh.axis_names) - frozenset(self.mesh.manual_axes)

    def seen_as(self, aval: Any) -> Any:
        """The type of an array, with its sharding where that is known and matters."""
        plain = jax.core.ShapedArray(aval.shape, aval.dtype, memory_space=aval.memory_space)
        return plain if self.specs is None else plain.update(sharding=aval.sharding)

    def on_each_device(self, function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        """The function, called by each device with its share."""
        return jax.shard_map(
            function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, axis_names=self.axes, check_vma=False
        )


_LOCAL = _Place(AbstractMesh((), ()), None)


def _place(ctx: mlir.LoweringRuleContext, avals: Sequence[Any]) -> _Place:
    context = ctx.module_context.axis_context
    mesh = next((aval.sharding.mesh for aval in avals if not aval.sharding.mesh.empty), None)
    if isinstance(context, _private.SPMDAxisContext):
        manual = context.manual_axes | frozenset(context.mesh.manual_axes)
        if manual >= frozenset(context.mesh.axis_names):
            return _LOCAL
        mesh = mesh or context.mesh.abstract_mesh.update_axis_types(dict.fromkeys(manual, AxisType.Manual))
    elif not isinstance(context, _private.ShardingContext) or context.num_devices == 1:
        return _LOCAL
    elif mesh is None or mesh.size != context.num_devices:
        mesh = AbstractMesh((context.num_devices,), ("devices",), axis_types=(AxisType.Auto,))
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    place = _Place(mesh, None)
    if all(types[axis] == AxisType.Explicit for axis in place.axes):
        return dataclasses.replace(place, specs=tuple(aval.sharding.spec for aval in avals))
    return place


def _tie_on_device(place: _Place, n: int, *arrays: Any) -> list[Any]:
    """`_tie` for arrays in any memory: a kernel takes those on the device, so what is elsewhere goes there."""
    spaces = [jax.typeof(x).memory_space for x in arrays]
    on_device = [_moved(x, jax.memory.Space.Device) for x in arrays]
    tied = _tie(place, n, *on_device)
    return [_moved(x, space) for x, space in zip(tied, spaces, strict=False)]


def _moved(x: Any, space: Any) -> Any:
    return x if jax.typeof(x).memory_space == space else jax.device_put(x, space)


def _tie(place: _Place, n: int, *arrays: Any) -> list[Any]:
    """The first `n` arrays, such that each of them depends on all arrays."""
    if place.axes and place.specs is not None:
        each_device = place.on_each_device(functools.partial(_tie, _LOCAL, n), place.specs, list(place.specs[:n]))
        return list(each_device(*arrays))

    taken = [None if place.axes else _taken(array) for array in arrays]
    held = [part for those in taken[:n] if those for part in those.parts]
    awaited = [part for those in taken[n:] if those for part in those.parts]
    # A lone leaf need not wait for itself.
    others = [x for i, (x, those) in enumerate(zip(arrays, taken, strict=True)) if those is None and (n > 1 or i > 0)]
    awaited += [number for x in others for number in _numbers(x)]
    if None in taken[:n]:
        held.append(jnp.ones(1, jnp.int32))
    kernel: Callable[..., Any] = functools.partial(_kernel_p.bind, n=len(held))
    if place.axes:
        kernel = place.on_each_device(kernel, PartitionSpec(), PartitionSpec())
    results = kernel(*held, *awaited) if held else []

    # The number is still one, which XLA does not know.
    is_one: Any = results[-1][0] == 1 if None in taken[:n] else None
    parts = iter(results)
    return [
        lax.select(is_one, x, lax.full_like(x, 0))
        if those is None
        else those.rebuild(*(next(parts) for _ in those.parts))
        for x, those in zip(arrays[:n], taken, strict=False)
    ]


@dataclasses.dataclass(frozen=True)
class _Taken:
    """An array as a kernel takes it."""

    parts: tuple[Any, ...]
    """Arrays with an axis and with elements, of dtypes that kernels know."""
    rebuild: Callable[..., Any]
    """Makes the array of the parts that the kernel returned."""


_KERNEL_FLOATS = ("float32", "bfloat16", "float8_e4m3fn", "float8_e5m2")


def _taken(x: Any) -> _Taken | None:
    """The array as a kernel takes it. None: its shape is not known, or it has 64 bits an element and is no complex."""
    if _is_key(x):
        wrap = functools.partial(jax.random.wrap_key_data, impl=jax.random.key_impl(x))
        return _converted(jax.random.key_data(x), wrap)
    if not all(isinstance(dim, int) for dim in x.shape):
        return None
    if x.size == 0:
        return _Taken((), lambda: x)
    if x.ndim == 0:
        return _converted(x.reshape(1), lambda y: y.reshape(()))
    if x.dtype == jnp.complex64:  # which is two arrays on TPU
        return _Taken((x.real, x.imag), lax.complex)
    if x.dtype == jnp.bool_:
        return _converted(x.astype(jnp.int8), lambda y: y.astype(jnp.bool_))
    if x.dtype.itemsize > 4:
        return None
    if jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.name not in _KERNEL_FLOATS:
        bits = jnp.dtype(f"uint{jnp.finfo(x.dtype).bits}")  # type: ignore[no-untyped-call]
        return _converted(lax.bitcast_convert_type(x, bits), lambda y: lax.bitcast_convert_type(y, x.dtype))
    return _Taken((x,), lambda y: y)


def _converted(x: Any, back: Callable[[Any], Any]) -> _Taken | None:
    taken = _taken(x)
    return taken and _Taken(taken.parts, lambda *parts: back(taken.rebuild(*parts)))


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _numbers(x: Any) -> list[Any]:
    """Numbers that a kernel takes and that depend on every element of the array, and on all of its bits."""
    if _is_key(x):
        return _numbers(jax.random.key_data(x))
    if any(isinstance(dim, int) and dim == 0 for dim in x.shape):
        return []
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return _numbers(x.real) + _numbers(x.imag)
    if x.dtype.itemsize < 4 or x.dtype == jnp.bool_:
        x = x.astype(jnp.float32 if jnp.issubdtype(x.dtype, jnp.floating) else jnp.int32)
    largest = lax.reduce_max(x, axes=tuple(range(x.ndim))).reshape(1)
    if x.dtype.itemsize == 4:
        return [largest]
    if jnp.issubdtype(x.dtype, jnp.floating):
        high = largest.astype(jnp.float32)
        return [high, (largest - high.astype(x.dtype)).astype(jnp.float32)]
    return [largest.astype(jnp.int32), (largest >> 32).astype(jnp.int32)]


_kernel_p: Any = _private.Primitive("entangle")
_kernel_p.multiple_results = True


@_kernel_p.def_abstract_eval
def _abstract_eval(*avals: Any, n: int) -> list[Any]:
    return list(avals[:n])


def _lower_kernel(ctx: mlir.LoweringRuleContext, *operands: Any, n: int) -> Any:
    # Pallas makes kernels with Mosaic too, but asks for the kind of the device, which an export does not know.
    mosaic = importlib.import_module("jax.experimental.mosaic")
    tpu = importlib.import_module("jax.experimental.mosaic.dialects").tpu
    references = [_reference(operand.type) for operand in (*operands, *operands[:n])]
    arguments = ", ".join(f"%{i}: {reference}" for i, reference in enumerate(references))
    kernel = f"func.func @entangle({arguments}) attributes {{tpu.core_type = #tpu.core_type<tc>}} {{ return }}"
    context = mlir.make_ir_context()
    tpu.register_dialect(context)
    with context, mlir.ir.Location.unknown(context):
        module = mlir.ir.Module.parse(kernel)
    # Each device makes this call by itself: `_tie` saw to that, and jax 0.10 does not see it in each case.
    alone = ctx.module_context.replace(axis_context=_private.ShardingContext(1))
    results = mosaic.lower_module_to_custom_call(
        ctx.replace(module_context=alone),
        *operands,
        module=module,
        out_type=ctx.avals_out,
        kernel_name="entangle",
        input_output_aliases=tuple((i, i) for i in range(n)),
        has_side_effects=False,
        serialization_format=1,
        **dict.fromkeys(_UNSET),
    )
    # A kernel wants row-major arrays, unless nothing is said of layouts: then it takes them as they lie.
    attributes = results[0].owner.attributes
    del attributes["operand_layouts"], attributes["result_layouts"]
    return results


_UNSET = (
    "allow_input_fusion",
    "collective_id",
    "cost_estimate",
    "flags",
    "input_memory_spaces",
    "internal_scratch_in_bytes",
    "output_memory_spaces",
    "vmem_limit_bytes",
)


def _reference(tensor: Any) -> str:
    """The type of a reference to an array, which the kernel leaves in the memory where it is."""
    element = str(tensor.element_type).replace("ui", "i")  # Mosaic's integers have no sign
    return f"memref<{''.join(f'{dim}x' for dim in tensor.shape)}{element}, #tpu.memory_space<any>>"


mlir.register_lowering(_kernel_p, _lower_kernel, platform="tpu")
