"""How the call is split over devices: in place, each leaf along its own sharding, without communication.

An unknown custom call makes a partitioner gather its operands. Shardy is told otherwise by a rule on the operation
and by a partitioner that is registered for the target's name, GSPMD by the latter alone. Both are found by name, so
exported and cached programs stay valid in other processes.
"""

import functools
from collections.abc import Sequence
from typing import Any

from jax.interpreters import mlir

from entangle_jax import _private


def sharding_rule(operands: Sequence[Any], n: int) -> Any:
    """The `sdy.sharding_rule` of a call whose first `n` operands are its results as well.

    Every dimension of every operand is a factor of its own, and a result has the factors of its operand: so
    any sharding of any operand is fine. `None` where there is nothing to say (no dimensions) or nothing can be
    said: a rule gives the size of every factor, which symbolic dimensions and XLA tokens do not have.
    """
    sdy = _private.sdy()
    sizes: list[int] = []
    mappings = []
    for operand in operands:
        tensor = operand.type
        if not isinstance(tensor, mlir.ir.RankedTensorType) or not tensor.has_static_shape:
            return None
        first = len(sizes)
        sizes += tensor.shape
        mappings.append(sdy.TensorMappingAttr.get([sdy.DimMappingAttr.get([i]) for i in range(first, len(sizes))]))
    return sdy.OpShardingRuleAttr.get(sizes, mappings, mappings[:n], is_custom=True) if sizes else None


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
    if not result.is_tuple():
        return shardings[0]
    return _private.HloSharding.tuple_sharding(result, list(shardings[: len(result.tuple_shapes())]))


def _partition(target: str, shapes: Any, shardings: Any, result: Any, result_sharding: Any, backend: Any) -> Any:
    """The call on one device's share. A payload leaf is split as its result is, a witness as it comes."""
    del backend
    of_results = result_sharding.tuple_elements() if result.is_tuple() else [result_sharding]
    n = len(of_results)
    of_operands = [*of_results, *shardings[n:]]
    types = [_tensor_type(sharding.tile(shape)) for shape, sharding in zip(shapes, of_operands, strict=True)]
    return _program(target, types, n).encode(), of_operands, result_sharding


def _tensor_type(shape: Any) -> str:
    with mlir.make_ir_context():
        element = str(mlir.dtype_to_ir_type(shape.numpy_dtype()))
    return f"tensor<{''.join(f'{dim}x' for dim in shape.dimensions())}{element}>"


def _program(target: str, types: Sequence[str], n: int) -> str:
    """A StableHLO module with nothing but the call."""
    names = [f"%arg{i}" for i in range(len(types))]
    arguments = ", ".join(f"{name}: {type_}" for name, type_ in zip(names, types, strict=True))
    results = ", ".join(types[:n])
    aliases = ", ".join(
        f"#stablehlo.output_operand_alias<output_tuple_indices = [{i if n > 1 else ''}], operand_index = {i}, "
        "operand_tuple_indices = []>"
        for i in range(n)
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
