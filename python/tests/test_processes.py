"""Forks, processes that end with calls in flight, and programs that run in two processes at once."""

import os
import socket

import fresh
import pytest

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

PROGRAM = """
    import os, sys, threading, time
    import jax, jax.numpy as jnp, numpy as np
    from entangle_jax import entangle, testing

    def work(x):  # some milliseconds that XLA cannot avoid
        return jnp.sort(jnp.sin(jnp.arange(float(os.environ.get("ENTANGLE_TESTS_NUMBERS", 100_000))) + x))[0]

    @jax.jit
    def program(token, value):
        before = testing.read(token)
        token = testing.write(entangle(token, before, work(before)), value)
        return token, before, testing.read(token)

    def check(slot, value, previous):
        token, before, after = program(testing.slot(slot), value)
        assert (int(token), float(before), float(after)) == (slot, previous, value), (token, before, after)
"""


@forks
def test_a_fork_after_import_works_in_both_processes():
    code = """
    import warnings
    warnings.filterwarnings("ignore", message=".*fork.*")
    children = []
    for i in range(2):
        child = os.fork()
        if child == 0:
            for call in range(5):
                check(0, 10.0 * i + call + 1, 10.0 * i + call if call else 0.0)
            assert [access.op for access in testing.log()] == ["read", "write", "read"] * 5
            print("child", flush=True)
            os._exit(0)
        children.append(child)
    check(0, 7.0, 0.0)  # none of a child's writes is seen here
    for child in children:
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0, status
    check(0, 8.0, 7.0)
    print("parent")
    """
    assert fresh.run(PROGRAM + code).splitlines() == ["child", "child", "parent"]


@forks
def test_a_fork_amid_calls_does_not_disturb_them():
    """A child of a process whose backend runs cannot use jax; that it comes and goes must not be felt by the parent."""
    code = """
    import warnings
    warnings.filterwarnings("ignore", message=".*fork.*")
    check(0, 1.0, 0.0)
    def calls():
        for call in range(1, 40):
            check(0, call + 1.0, float(call))
    thread = threading.Thread(target=calls)
    thread.start()
    for _ in range(5):
        child = os.fork()
        if child == 0:
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0, status
    thread.join()
    check(0, 50.0, 40.0)
    print(len(testing.log()))
    """
    assert fresh.run(PROGRAM + code) == f"{3 * 41}\n"


@forks
def test_a_server_that_forks_after_import_has_working_children(tmp_path):
    (tmp_path / "worker.py").write_text(
        "import jax\nimport jax.numpy as jnp\nfrom entangle_jax import entangle\n"
        "def double(x):\n    return int(jax.jit(lambda x: entangle(2 * x, x))(jnp.int32(x)))\n"
    )
    code = """
        import multiprocessing, sys
        sys.path.insert(0, sys.argv[1])
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["worker"])
        import worker
        with context.Pool(2) as pool:
            print(pool.map(worker.double, [1, 2, 3]))
    """
    assert fresh.run(code, tmp_path) == "[2, 4, 6]\n"


def test_a_process_may_end_while_a_program_runs():
    """The program is under way when the interpreter shuts down; it ends in order, and without a word."""
    code = """
    @jax.jit
    def long(token):
        def body(i, token):
            token, before, after = program(token, i.astype(jnp.float32))
            return token
        return jax.lax.fori_loop(0, 100, body, token)
    compiled = long.lower(testing.slot(0)).compile()
    result = compiled(testing.slot(0))
    print(result.is_ready(), flush=True)
    """
    assert fresh.run(PROGRAM + code) == "False\n"


def test_a_process_may_end_while_threads_call():
    """The main thread is done; the others go on calling, and are waited for."""
    code = """
    check(0, 1.0, 0.0)
    def calls(slot):
        for call in range(20):
            check(slot, call + 1.0, float(call))
        print("done\\n", end="", flush=True)  # in one write: other threads print as well
    for slot in range(1, 5):
        threading.Thread(target=calls, args=(slot,)).start()
    print("leaving", flush=True)
    """
    assert fresh.run(PROGRAM + code).splitlines() == ["leaving", *["done"] * 4]


def test_a_process_may_end_while_daemon_threads_use_the_native_module():
    """Threads that are cut off in the middle of a native call. (For calls of jax itself this is fatal in jax.)"""
    code = """
    check(0, 1.0, 0.0)
    ready = threading.Barrier(5)
    def calls():
        ready.wait()
        while True:
            testing.log()
            testing.reset()
    for _ in range(4):
        threading.Thread(target=calls, daemon=True).start()
    ready.wait()
    time.sleep(0.1)
    print("leaving", flush=True)
    """
    assert fresh.run(PROGRAM + code) == "leaving\n"


def test_calls_at_exit_work():
    code = """
    import atexit
    atexit.register(lambda: (check(0, 2.0, 1.0), print("at exit", flush=True)))
    check(0, 1.0, 0.0)
    """
    assert fresh.run(PROGRAM + code) == "at exit\n"


DISTRIBUTED = """
    import re, sys
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import NamedSharding, PartitionSpec as P
    rank, port = map(int, sys.argv[1:])
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=rank)
    from entangle_jax import entangle, testing

    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    split, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
    values = np.arange(64, dtype=np.float32).reshape(8, 8)
    x = jax.make_array_from_callback(values.shape, split, lambda index: values[index])
    ones = np.ones((4, 6), np.float32)
    w = jax.make_array_from_callback(ones.shape, whole, lambda index: ones[index])
    assert len(x.addressable_shards) == 2 and len(x.sharding.device_set) == 4

    compiled = jax.jit(lambda x, w: entangle(x, w, x.sum())).lower(x, w).compile()
    local = jax.jit(entangle).lower(x, w).compile()
    collectives = r"all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter|collective-broadcast"
    assert not re.search(collectives, local.as_text()), local.as_text()
    for result in (compiled(x, w), local(x, w), entangle(x, w)):
        assert result.sharding == x.sharding
        for shard in result.addressable_shards:
            np.testing.assert_array_equal(shard.data, values[shard.index])

    # Order within each process, and a sum over both of what each of them read after its write.
    def on_one_device(tokens):
        token = tokens[0]
        before = testing.read(token, label="before")
        token = testing.write(entangle(token, before), 1.0 + token, label="change")
        after = testing.read(token, label="after")
        return jax.lax.psum(jnp.stack([before, after]), "x")[None]

    tokens = jax.make_array_from_callback((4,), split, lambda index: np.arange(4, dtype=np.int32)[index])
    sums = jax.jit(jax.shard_map(on_one_device, mesh=mesh, in_specs=P("x"), out_specs=P("x")))(tokens)
    np.testing.assert_array_equal(sums.addressable_shards[0].data, [[0.0, 1.0 + 2.0 + 3.0 + 4.0]])
    for slot in range(4):
        labels = [access.label for access in testing.log() if access.slot == slot]
        here = slot // 2 == rank
        assert labels == (["before", "change", "after"] if here else []), (rank, slot, labels)
    jax.distributed.shutdown()
    print("rank", rank)
"""


def test_two_processes_share_a_program_without_communication_for_entangle():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    both = [fresh.start(DISTRIBUTED, rank, port) for rank in range(2)]
    ends = [fresh.finish(process) for process in both]
    for rank, (status, out, err) in enumerate(ends):
        assert status == 0, f"rank {rank}: exit status {status}\n{out}\n{err}"
        assert f"rank {rank}" in out
