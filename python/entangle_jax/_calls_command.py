"""`python -m entangle_jax calls module:function ARGUMENT...`: which calls a function makes that XLA cannot see into."""

import argparse
import ast
import importlib
import re
import sys
from typing import Any

import jax
import jax.numpy as jnp

from entangle_jax._calls import calls

_TYPE = re.compile(r"([a-z]+\d*(?:_[a-z0-9]+)?)\[([\d,\s]*)\]")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("function", metavar="MODULE:FUNCTION", help="the function, such as 'my_package.solver:step'")
    parser.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="an argument of the function, in order")
    parser.epilog = (
        "Each ARGUMENT is the type of an array, 'float32[100,3]' or 'int32[]'; or a Python literal, '3' or '\"cg\"';\n"
        "or MODULE:NAME for an object. The function is traced and does not run. Modules are found as by 'python -m'.\n"
        "Exit status 0: the calls are listed; 2: the function cannot be found or traced."
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the calls. Returns the exit status."""
    try:
        fn = _find(arguments.function)
        values = [_argument(text) for text in arguments.arguments]
    except ValueError as error:
        print(f"entangle_jax calls: {error}", file=sys.stderr)
        return 2
    try:
        found = calls(fn, *values)
    except Exception as error:  # whatever the user's function raises while it is traced
        given = ", ".join(arguments.arguments) or "no arguments"
        print(
            f"entangle_jax calls: {arguments.function} cannot be traced with {given}: {type(error).__name__}: {error}",
            file=sys.stderr,
        )
        return 2
    print(found)
    return 0


def _find(text: str) -> Any:
    module_name, _, path = text.partition(":")
    if not module_name or not path:
        raise ValueError(f"{text!r} names no function, wanted MODULE:FUNCTION, such as 'my_package.solver:step'")
    try:
        found = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(f"the module {module_name!r} cannot be imported: {error}") from error
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            raise ValueError(f"{module_name!r} has no {path!r}") from error
    return found


def _argument(text: str) -> Any:
    if (match := _TYPE.fullmatch(text)) is not None:
        try:
            dtype = jnp.dtype(match[1])
        except TypeError as error:
            raise ValueError(
                f"{text!r}: there is no dtype {match[1]!r}, wanted one such as 'float32[100,3]'"
            ) from error
        return jax.ShapeDtypeStruct([int(dim) for dim in match[2].split(",") if dim.strip()], dtype)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        pass
    if ":" in text:
        return _find(text)
    raise ValueError(
        f"the argument {text!r} is neither a type such as 'float32[100,3]', nor a Python literal, nor MODULE:NAME"
    )
