"""How the call is split over devices: in place, each leaf along its own sharding.

An unknown custom call makes a partitioner gather its operands. Shardy is told otherwise by a rule on the operation
and by a partitioner that is registered for the target's name, GSPMD by the latter alone. Both are found by name, so
exported and cached programs stay valid in other processes.

There is no communication, unless an operand lives on one device, as the result of a callback does: on the other devices
XLA has a constant in its place, which waits for nothing. Such an operand is broadcast, so that all of them wait for it.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax.interpreters import mlir

from entangle_jax import _private


def sharding_rule(operands: Sequence[Any], n: int) -> dict[str, Any]:
    """The attributes that tell Shardy how a call may be split whose first `n` operands are its results as well.

    Every dimension of every operand is a factor of its own, and a result has the factors of its operand: so
    any sharding of any operand is fine. Where there are no dimensions there is nothing to say.
    """
    sdy = _private.sdy()
    sizes: list[int] = []
    mappings = []
    plain = True
    for operand in operands:
        tensor = operand.type
        is_array = isinstance(tensor, mlir.ir.RankedTensorType)  # or it is an XLA token
        plain &= is_array and tensor.has_static_shape
        first = len(sizes)
        if is_array:
            sizes += [1 if tensor.is_dynamic_dim(i) else tensor.shape[i] for i in range(tensor.rank)]
        mappings.append(sdy.TensorMappingAttr.get([sdy.DimMappingAttr.get([i]) for i in range(first, len(sizes))]))
    if not sizes:
        return {}
    rule = sdy.OpShardingRuleAttr.get(sizes, mappings, mappings[:n], is_custom=True)
    if plain:
        return {"sdy.sharding_rule": rule}
    # An operation with symbolic dimensions or XLA tokens may not have a rule. It obeys one all the same that stands
    # where XLA itself writes rules when it passes a program on. The sizes do not matter: every dimension is one factor.
    written = mlir.ir.StringAttr.get(str(rule))
    return {"mhlo.frontend_attributes": mlir.ir.DictAttr.get({"xla.sdy.sharding_rule": written})}


def behind_barriers(ctx: mlir.LoweringRuleContext, operands: Sequence[Any], n: int) -> list[Any]:
    """The operands, such that one that lives on one device does not keep Shardy from splitting the others.

    Shardy splits no operation whose operands are on different meshes, and one device is a mesh of its own. Behind a
    barrier an operand is on the mesh of the others. The barriers are gone once Shardy is done. They let shardings
    through to the call, not back: the other way nothing comes from the call to a witness or a scalar.
    """
    partitions: Any = ctx.module_context.module.operation.attributes["mhlo.num_partitions"]
    config: Any = jax.config
    if partitions.value == 1 or not config.jax_use_shardy_partitioner:
        return list(operands)
    sdy = _private.sdy()
    forward = mlir.ir.IntegerAttr.get(mlir.ir.IntegerType.get_signless(32), 1)
    return [
        sdy.propagation_barrier(operand, forward)
        if isinstance(operand.type, mlir.ir.RankedTensorType)
        and operand.type.has_static_shape
        and (i >= n or operand.type.rank == 0)
        else operand
        for i, operand in enumerate(operands)
    ]


def register(target: str) -> None:
    """Register the partitioner of `target` with every backend that is there or will be."""
    callback = functools.partial(
        _private.register_custom_call_partitioner,
        target,
        _propagate_user_sharding,
        functools.partial(_partition, target),
        _infer_sharding_from_operands,
        can_side_effecting_have_replicated_sharding=True,
    )
    callback()
    _private.register_plugin_callbacks(callback)


def _propagate_user_sharding(user_sharding: Any, shape: Any, backend: Any) -> Any:
    del shape, backend
    return user_sharding


def _infer_sharding_from_operands(shapes: Any, shardings: Sequence[Any], result: Any, backend: Any) -> Any:
    del shapes, backend
    # What nobody has said anything about yet is whole.
    known = [sharding or _private.HloSharding.replicate() for sharding in shardings]
    if not result.is_tuple():
        return known[0]
    return _private.HloSharding.tuple_sharding(result, known[: len(result.tuple_shapes())])


def _partition(target: str, shapes: Any, shardings: Any, result: Any, result_sharding: Any, backend: Any) -> Any:
    """The call on one device's share. A payload leaf is split as its result is, a witness as it comes.

    What lives on one device is replicated instead: a leaf or a result because the other leaves wait for it as well.
    """
    del backend
    of_results = [
        _on_all_devices(each) for each in (result_sharding.tuple_elements() if result.is_tuple() else [result_sharding])
    ]
    n = len(of_results)
    of_operands = [*of_results, *map(_on_all_devices, shardings[n:])]
    if result.is_tuple():
        result_sharding = _private.HloSharding.tuple_sharding(result, of_results)
    else:
        (result_sharding,) = of_results
    with mlir.make_ir_context():
        types = [_type_of(sharding.tile(shape)) for shape, sharding in zip(shapes, of_operands, strict=True)]
    return _program(target, types, n).encode(), of_operands, result_sharding


def _on_all_devices(sharding: Any) -> Any:
    return _private.HloSharding.replicate() if sharding.is_maximal() else sharding


_TOKEN = "!stablehlo.token"


def _type_of(shape: Any) -> str:
    if shape.is_token():
        return _TOKEN
    dimensions = "".join(f"{dim}x" for dim in shape.dimensions())
    return f"tensor<{dimensions}{mlir.dtype_to_ir_type(shape.numpy_dtype())}>"


def _program(target: str, types: Sequence[str], n: int) -> str:
    """A StableHLO module with nothing but the call."""
    names = [f"%arg{i}" for i in range(len(types))]
    arguments = ", ".join(f"{name}: {type_}" for name, type_ in zip(names, types, strict=True))
    results = ", ".join(types[:n])
    aliases = ", ".join(
        f"#stablehlo.output_operand_alias<output_tuple_indices = [{i if n > 1 else ''}], operand_index = {i}, "
        "operand_tuple_indices = []>"
        for i in range(n)
        if types[i] != _TOKEN
    )
    return f"""
module @{target} {{
  func.func public @main({arguments}) -> ({results}) {{
    %0{f":{n}" if n > 1 else ""} = stablehlo.custom_call @{target}({", ".join(names)}) {{
      api_version = 4 : i32, backend_config = {{}}, output_operand_aliases = [{aliases}]
    }} : ({", ".join(types)}) -> {f"({results})" if n > 1 else results}
    return {", ".join(f"%0#{i}" for i in range(n)) if n > 1 else "%0"} : {results}
  }}
}}
"""
