"""What a person says of native calls, as what the audit is told: an `Access` for each, see `_native.pyi`.

This is the only place where names of targets become accesses. What a program says of itself becomes accesses elsewhere
and joins them in `_audit.audit_programs`.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from entangle_jax import _native, _private

TargetSpec = str | tuple[str, int] | tuple[str, Sequence[int]] | tuple[str, str] | _native.Access
"""A native target's name, or the name and what says which object a call touches: the operand (or operands) that hold
its handle, `()` if all of its calls touch one object, or the name of an attribute that names the object."""

TargetSpecs = Iterable[TargetSpec] | Mapping[str, Iterable[TargetSpec]]
"""Targets; or, for each resource by its name, the targets that touch it."""


def accesses(reads: TargetSpecs, writes: TargetSpecs) -> list[_native.Access]:
    """What `reads` and `writes` of `audit` say.

    Raises:
      TypeError: an argument is not what it should be.
      ValueError: there are reads and no writes.
    """
    reading, writing = _of_argument("reads", reads), _of_argument("writes", writes)
    if reading and not writing:
        raise ValueError(
            "entangle_jax.audit: `reads` names targets and `writes` names none. Reads never race among themselves, so "
            "this would find nothing: name in `writes` what changes the objects."
        )
    return reading + writing


def expect_known(given: Iterable[_native.Access], called: set[str]) -> None:
    """Refuse a target that is neither called nor registered: a misspelt one would pass for proof.

    Raises:
      ValueError: with the targets that are called.
    """
    unknown = dict.fromkeys(access.target for access in given if access.target and access.target not in called)
    registered = _private.registered_targets() if unknown else set()
    unknown = {target: None for target in unknown if target not in registered}
    if unknown:
        names = ", ".join(map(repr, unknown))
        subject = f"{names} is no native target" if len(unknown) == 1 else f"{names} are no native targets"
        verb = "it" if len(unknown) == 1 else "them"
        raise ValueError(
            f"entangle_jax.audit: {subject}: nothing here calls {verb}, and nothing is registered under that name. "
            f"Targets that are called here: {', '.join(sorted(called)) or 'none'}."
        )


def _of_argument(argument: str, specs: TargetSpecs) -> list[_native.Access]:
    writes = argument == "writes"
    if isinstance(specs, Mapping):
        found = []
        for resource, targets in specs.items():
            if not isinstance(resource, str) or not resource:
                raise TypeError(f"entangle_jax.audit: a resource in {argument} is {resource!r}, wanted its name.")
            found += [_access(spec, writes, resource) for spec in _listed(f"{argument}[{resource!r}]", targets)]
        return found
    return [_access(spec, writes, None) for spec in _listed(argument, specs)]


def _listed(what: str, specs: Any) -> list[Any]:
    if isinstance(specs, str) or not isinstance(specs, Iterable):
        raise TypeError(f"entangle_jax.audit: {what} is {specs!r}, wanted a list of targets, such as ['my_solve'].")
    return list(specs)


def _access(spec: Any, writes: bool, resource: str | None) -> _native.Access:
    if isinstance(spec, _native.Access):
        return spec
    name, where = (spec, None) if isinstance(spec, str) else _pair(spec)
    if not name:
        raise TypeError(
            f"entangle_jax.audit: a target is {spec!r}, wanted its name; or a pair of its name and the operand (from "
            "0), or operands, that hold its handle, or () if all its calls touch one object, or the name of the "
            "attribute that names the object."
        )
    if isinstance(where, str):
        return _native.Access(writes=writes, target=name, resource=resource, attribute=where)
    if where is None:
        return _native.Access(writes=writes, target=name, resource=resource)
    try:
        return _native.Access(writes=writes, target=name, resource=resource, operands=where or None, whole=not where)
    except OverflowError as error:
        raise TypeError(f"entangle_jax.audit: a target is {spec!r}, with an operand that no call can have.") from error


def _pair(spec: Any) -> tuple[str | None, str | list[int] | None]:
    """The name and the object of a pair; None if it is none."""
    with contextlib.suppress(TypeError, ValueError):
        name, where = spec
        if isinstance(name, str) and isinstance(where, str) and where and not where.isdigit() and where.isidentifier():
            return name, where
        if isinstance(name, str) and not isinstance(where, str):
            operands = [where] if isinstance(where, int) else [operator.index(operand) for operand in where]
            if not operands or min(operands) >= 0:
                return name, operands
    return None, None
