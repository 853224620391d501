"""Registers the handlers, which are symbols of the native module (src/handlers.rs)."""

import ctypes

import jax

from sparse_lu import _native

DTYPES = ("float32", "float64", "complex64", "complex128")

_library = ctypes.CDLL(_native.__file__)
for _name in ("version", "indices", "free", *(f"{what}_{dtype}" for what in ("refactor", "solve") for dtype in DTYPES)):
    _symbol = getattr(_library, f"sparse_lu_{_name}")
    jax.ffi.register_ffi_target(f"sparse_lu_{_name}", jax.ffi.pycapsule(_symbol), platform="cpu")
