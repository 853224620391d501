"""What breaks around the call or under the package: an error that says what, why and what to do; nothing corrupted."""

import contextlib
import shutil
import sys
from pathlib import Path

import delays
import fresh
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import entangle_jax
from entangle_jax import entangle, testing

PACKAGE = Path(entangle_jax.__file__).parent


# A producer that fails


def fail_natively(x):
    """A native call that returns an FFI error: the handler of `entangle`, without the aliases that it asks for."""
    return jax.ffi.ffi_call("entangle", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def fail_in_python(x):
    def raises(value):
        raise ZeroDivisionError(f"the solver met {value}")

    return jax.pure_callback(raises, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def fail_out_of_memory(x):
    # 2**62 bytes, which no machine has; sorted, so that no fusion avoids to hold them.
    big = jax.lax.broadcast(x, (2**60,)) + jax.lax.iota(jnp.float32, 2**46)
    return jnp.sort(big)[7]


NO_GRAPHS = {"xla_gpu_enable_command_buffer": ""}
"""For XLA:GPU, which calls the handlers of all branches when it records a graph: a failure there breaks the executable for good."""


def program_around(order, fail):
    """Read a slot, make a witness from that, which may fail, and change the slot."""

    def program(token, bad):
        before = testing.read(token, label="before")
        witness = jax.lax.cond(bad, fail, lambda x: x, before)
        token = testing.write(order(token, witness), 1.0, label="change")
        return testing.read(token, label="after"), witness  # or a witness that nobody needs is dropped with its failure

    return jax.jit(program, compiler_options=NO_GRAPHS)


def labels():
    return [access.label for access in testing.log()]


FAILED = (jax.errors.JaxRuntimeError, ValueError)
"""What jax raises when a program fails: up to 0.10 a ValueError if it failed before the dispatch had returned."""


def assert_fails(text, function, *args):
    """It fails with that text."""
    with pytest.raises(FAILED, match=text):
        jax.block_until_ready(function(*args))
    with contextlib.suppress(*FAILED):
        jax.effects_barrier()  # a program with side effects may have left its failure here as well


@pytest.mark.parametrize(
    ("fail", "text"),
    [(fail_natively, "payload leaf 0 of 1"), (fail_in_python, "the solver met")],
    ids=["native", "python"],
)
def test_nothing_runs_after_a_witness_that_failed(slots, fail, text):
    program = program_around(entangle, fail)
    assert program(testing.slot(0), False)[0] == 1.0
    slots.reset()
    assert_fails(text, program, testing.slot(0), True)
    assert labels() == ["before"]
    slots.reset()
    assert program(testing.slot(0), False)[0] == 1.0
    assert labels() == ["before", "change", "after"]


def test_without_entangle_the_change_does_not_wait_for_the_failure(slots):
    """Control for the test above: without a data path the change is made, since it does not wait."""

    def fail_slowly(x):
        return fail_natively(
            jax.lax.fori_loop(
                0, 100, lambda _, y: jnp.sort(jnp.sin(jnp.arange(delays.at_most(20_000) * 1.0) + y))[0], x
            )
        )

    program = program_around(lambda token, _: token, fail_slowly)
    assert_fails("payload leaf 0 of 1", program, testing.slot(0), True)
    assert "change" in labels()


@pytest.mark.parametrize("where", ["witness", "payload", "after"])
def test_running_out_of_memory_around_the_call_is_an_error_and_the_next_call_works(slots, where):
    def program(token, rows):
        before = testing.read(token, label="before")
        shape = (rows, 256)  # sorted, so that XLA has to hold it
        big = jnp.sort(jax.lax.broadcast(before, shape) + jax.lax.broadcasted_iota(jnp.float32, shape, 1))
        if where == "payload":
            big = entangle(big, before)
        token = entangle(token, big[0, 7]) if where == "witness" else entangle(token, before)
        token = testing.write(token, 1.0, label="change")
        return testing.read(token, label="after"), big[0, 7]

    program = jax.jit(program, static_argnums=1)
    # 2**48 bytes are more than a process can have, and 2**40 more than a GPU has, which cannot run a kernel on 2**48.
    rows = 2**38 if jax.default_backend() == "cpu" else 2**30
    assert_fails("RESOURCE_EXHAUSTED|Out of memory", program, testing.slot(0), rows)
    assert labels() in ([], ["before"], ["before", "change"], ["before", "change", "after"])
    if where == "witness":
        assert "change" not in labels()
    slots.reset()
    assert program(testing.slot(0), 1) == (1.0, 7.0)
    assert labels() == ["before", "change", "after"]


# Something wrong under the package


def copy_of_package(folder):
    """A second copy of the package, to be damaged. Returns the folder to import it from, and its native module."""
    shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    (native,) = (
        path for path in (folder / PACKAGE.name).iterdir() if path.stem.startswith("_native") and path.suffix != ".pyi"
    )
    return folder, native


def assert_tells(message, *parts):
    for part in parts:
        assert part in message, message


def test_a_missing_native_module_is_told(tmp_path):
    folder, native = copy_of_package(tmp_path)
    native.unlink()
    message = fresh.error("import entangle_jax", path=folder)
    assert_tells(
        message,
        "ImportError",
        f"no working native module in {native.parent}",
        "was not built",
        "pip install --force-reinstall",
    )


@pytest.mark.skipif(sys.platform != "linux", reason="the header of an ELF file is changed")
def test_a_native_module_for_another_processor_is_told(tmp_path):
    folder, native = copy_of_package(tmp_path)
    header = bytearray(native.read_bytes())
    assert header[:4] == b"\x7fELF"
    header[18:20] = (0xF3).to_bytes(2, "little")  # e_machine: RISC-V, for which there is no jaxlib
    native.write_bytes(header)
    message = fresh.error("import entangle_jax", path=folder)
    assert_tells(
        message,
        "ImportError",
        native.name,
        "none can be loaded",
        "another system or processor",
        "pip install --force-reinstall",
    )


@pytest.mark.skipif(sys.platform == "win32", reason="a module for Windows is for another system elsewhere")
def test_a_native_module_for_another_system_is_told(tmp_path):
    folder, native = copy_of_package(tmp_path)
    native.rename(native.with_name("_native.pyd"))
    message = fresh.error("import entangle_jax", path=folder)
    assert_tells(message, "ImportError", "_native.pyd", "none can be loaded", "another system or processor")


def test_a_file_that_is_no_library_is_told(tmp_path):
    folder, native = copy_of_package(tmp_path)
    native.write_text("version https://git-lfs.github.com/spec/v1")
    message = fresh.error("import entangle_jax", path=folder)
    assert_tells(message, "ImportError", native.name, "none can be loaded")


AS_IF = """
    import sys, jax
    jax.__version__ = sys.argv[1]
    jax.__version_info__ = tuple(map(int, sys.argv[1].split(".")))
"""


def test_a_jax_older_than_supported_is_told():
    message = fresh.error(AS_IF + "    import entangle_jax", "0.9.2")
    assert_tells(message, "ImportError", "needs jax 0.10.0 or newer", "found jax 0.9.2", "pip install --upgrade jax")


def test_a_jax_newer_than_known_that_has_all_we_use_is_fine():
    out = fresh.run(
        AS_IF + "    import entangle_jax, jax.numpy as jnp; print(entangle_jax.entangle(jnp.int32(3), jnp.ones(2)))",
        "99.0.0",
    )
    assert out == "3\n"


def test_a_jax_newer_than_known_that_lacks_something_is_told():
    """Every private name of jax in turn, taken from under the package."""
    code = r"""
        import importlib, re, sys, jax, jax.ref, jax.interpreters.ad, jax.interpreters.mlir, jax.interpreters.batching
        names = re.findall(r'_take\(\s*"([\w.]+)", "(\w+)"', open(sys.argv[1]).read())
        jax.__version__ = "99.0.0"
        for module, name in names:
            taken = getattr(importlib.import_module(module), name)
            delattr(sys.modules[module], name)
            try:
                import entangle_jax
            except ImportError as error:
                print(error)
            setattr(sys.modules[module], name, taken)
        import entangle_jax
        print(len(names))
    """
    *messages, count = fresh.run(code, PACKAGE / "_private.py").splitlines()
    assert len(messages) == int(count) >= 10
    for message in messages:
        assert_tells(message, "does not have", "jax 99.0.0", "install a newer entangle-jax, or an older jax")
    assert len({message.split("`")[1] for message in messages}) == int(count)


# What a runtime asks a handler at registration, answered by hand: the address of its metadata is 24 bytes into the
# first extension of the call frame, and the two numbers of the version 24 bytes into the metadata.
REJECTED = """
    import ctypes, jax
    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    def handler(frame):
        extension = ctypes.c_void_p.from_address(frame + 8).value
        metadata = ctypes.c_void_p.from_address(extension + 24).value
        ctypes.c_int.from_address(metadata + 24).value = 0
        ctypes.c_int.from_address(metadata + 28).value = 99
        return None

    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    of_the_future = capsule(ctypes.cast(handler, ctypes.c_void_p), b"handler", None)
"""


def test_a_jaxlib_that_does_not_speak_our_version_of_the_ffi_is_told():
    code = """
    import entangle_jax
    from entangle_jax import _native, _registration
    _native.targets = lambda: {"cpu": {"entangle_of_the_future": (of_the_future, None)}}
    _registration.register()
    """
    message = fresh.error(REJECTED + code)
    assert_tells(
        message,
        "ImportError",
        "refused the native handler `entangle_of_the_future` for cpu",
        "do not speak the same version of the XLA FFI",
        "cannot run in this process",
        "Upgrade entangle-jax",
        "(0.99)",
    )


def test_another_refusal_is_told_in_jaxlibs_words():
    code = """
        import jax, entangle_jax
        from entangle_jax import _registration
        def refuse(*args, **kwargs):
            raise RuntimeError("the runtime is on strike")
        jax.ffi.register_ffi_target = refuse
        _registration.register()
    """
    message = fresh.error(code)
    assert_tells(message, "ImportError", "Report it to entangle-jax", "jaxlib said: the runtime is on strike")


def test_a_second_copy_of_the_package_is_told_and_the_first_goes_on(tmp_path):
    folder, _ = copy_of_package(tmp_path)
    code = """
        import sys, jax, jax.numpy as jnp
        from entangle_jax import entangle
        first = sys.modules["entangle_jax"].__file__
        for name in [name for name in sys.modules if name.startswith("entangle_jax")]:
            del sys.modules[name]
        sys.path.insert(0, sys.argv[1])
        try:
            import entangle_jax
        except ImportError as error:
            print(error)
        print(jax.jit(entangle)(jnp.int32(7), jnp.ones(2)))
    """
    message, value = fresh.run(code, folder).splitlines()
    assert_tells(
        message, "refused the native handler `entangle`", "a second copy of entangle-jax", str(folder), "Keep one copy"
    )
    assert value == "7"


def test_registering_twice_and_reloading_change_nothing():
    code = """
        import importlib, sys, jax, jax.numpy as jnp, entangle_jax
        from entangle_jax import _registration, entangle, testing

        @jax.jit
        def program(token):
            before = testing.read(token)
            token = testing.write(sys.modules["entangle_jax"].entangle(token, before), 1.0)
            return before, testing.read(token)

        def check(when):
            jax.clear_caches()
            testing.reset()
            values = [float(value) for value in program(testing.slot(0))]
            assert values == [0.0, 1.0], (when, values)
            assert [access.op for access in testing.log()] == ["read", "write", "read"], when

        check("first")
        _registration.register()
        check("registered twice")
        importlib.reload(entangle_jax)
        check("reloaded")
        for name in [name for name in sys.modules if name.startswith("entangle_jax")]:
            del sys.modules[name]
        import entangle_jax
        assert entangle_jax.entangle is not entangle
        check("imported again")
        assert jax.jit(entangle)(jnp.int32(7), jnp.ones(2)) == 7  # the first import still works as well
        x = jax.grad(lambda x: entangle(x, jnp.log(x)) + entangle_jax.entangle(x, jnp.log(x)))(0.0)
        assert x == 2.0, x
    """
    fresh.run(code)


# Values at the edge of what the ABI can carry


def test_bits_survive_a_failure_in_between(slots):
    """The memory of a payload is not written by a program that fails half way, and is used again afterwards."""
    bits = np.array([0x7FA00001, 0x80000000, 0x00000001, 0xFF800001], np.uint32)

    def program(x, token, bad):
        before = testing.read(token)
        witness = jax.lax.cond(bad, fail_natively, lambda y: y, before)
        return jax.lax.bitcast_convert_type(entangle(x, witness), jnp.uint32)

    x, program = jnp.asarray(bits.view(np.float32)), jax.jit(program, compiler_options=NO_GRAPHS)
    for bad in (False, True, False):
        if bad:
            with pytest.raises(FAILED, match="payload leaf 0 of 1"):
                jax.block_until_ready(program(x, testing.slot(0), bad))
        else:
            np.testing.assert_array_equal(program(x, testing.slot(0), bad), bits)
