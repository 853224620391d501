"""Handlers of another library, which calls the driver in a context that is not its stream's: `away` and `back`."""

import ctypes

import jax

_driver = ctypes.CDLL("libcuda.so.1")
_driver.cuCtxSetCurrent.argtypes = (ctypes.c_void_p,)
_POINTER = ctypes.c_void_p


class _Version(ctypes.Structure):  # XLA_FFI_Api_Version
    _fields_ = (("size", ctypes.c_size_t), ("extension", _POINTER), ("major", ctypes.c_int), ("minor", ctypes.c_int))


class _Metadata(ctypes.Structure):  # XLA_FFI_Metadata
    _fields_ = (("size", ctypes.c_size_t), ("version", _Version), ("traits", ctypes.c_uint32))


class _Extension(ctypes.Structure):  # XLA_FFI_Metadata_Extension
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("next", _POINTER),
        ("metadata", ctypes.POINTER(_Metadata)),
    )


class _Frame(ctypes.Structure):  # the beginning of XLA_FFI_CallFrame
    _fields_ = (("size", ctypes.c_size_t), ("extension", ctypes.POINTER(_Extension)))


_METADATA = 1  # XLA_FFI_Extension_Metadata
_HANDLER = ctypes.CFUNCTYPE(_POINTER, ctypes.POINTER(_Frame))
_here = _POINTER()


def _handler(call):
    def handle(frame):
        extension = frame.contents.extension
        if extension and extension.contents.type == _METADATA:
            version = extension.contents.metadata.contents.version
            version.major, version.minor = 0, 1  # as in every version of jax here
        else:
            call()  # and None: no error

    return _HANDLER(handle)


def _leave():
    _driver.cuCtxGetCurrent(ctypes.byref(_here))
    _driver.cuCtxSetCurrent(None)


_HANDLERS = {"meddling_away": _handler(_leave), "meddling_back": _handler(lambda: _driver.cuCtxSetCurrent(_here))}


def register():
    """For the functions below, once in a process."""
    for name, handler in _HANDLERS.items():
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler), platform="CUDA")


def _call(name, x):
    return jax.ffi.ffi_call(name, jax.ShapeDtypeStruct(x.shape, x.dtype), input_output_aliases={0: 0})(x)


def away(x):
    """Gives `x`; what runs after it, and before `back`, finds no context."""
    return _call("meddling_away", x)


def back(x):
    """Gives `x`; the context is again what it was."""
    return _call("meddling_back", x)
