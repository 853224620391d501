"""The model itself: each kind of violation is seen, and what is allowed is none. By the driver's own functions, without XLA."""

import ctypes

import jax
import model
import pytest

HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
NON_BLOCKING, RELAXED, THREAD_LOCAL = 1, 2, 1


class Driver:
    """Functions of the driver: an error is an exception."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.context(0)

    def __getattr__(self, name):
        function = getattr(self.library, name)

        def call(*arguments):
            status = function(*arguments)
            assert status == 0, f"{name}: {status}"

        return call

    def made(self, function, *arguments):
        made = ctypes.c_void_p()
        getattr(self, function)(ctypes.byref(made), *arguments)
        return made

    def context(self, device):
        self.cuCtxSetCurrent(self.made("cuDevicePrimaryCtxRetain", device))

    def current(self):
        context = ctypes.c_void_p()
        self.cuCtxGetCurrent(ctypes.byref(context))
        return context.value

    def memory(self, size=64):
        return self.made("cuMemAlloc_v2", ctypes.c_size_t(size))

    def stream(self):
        return self.made("cuStreamCreate", NON_BLOCKING)

    def set(self, memory, stream):
        self.cuMemsetD8Async(memory, 1, ctypes.c_size_t(64), stream)

    def copy(self, to, source, stream):
        self.cuMemcpyDtoDAsync_v2(to, source, ctypes.c_size_t(64), stream)


@pytest.fixture
def driver():
    jax.devices()
    model.set_order()
    return Driver()


def violations(driver, *streams):
    for stream in streams:
        driver.cuStreamSynchronize(stream)
    found = model.report().violations
    model.forgive()
    return found


def test_two_streams_that_write_the_same_memory_are_a_race(driver):
    memory, one, two = driver.memory(), driver.stream(), driver.stream()
    driver.set(memory, one)
    driver.set(memory, two)
    (found,) = violations(driver, one, two)
    assert found.startswith("race: 'set' on stream")


def test_a_read_beside_a_write_is_a_race_and_two_reads_are_none(driver):
    memory, other, third, one, two = *(driver.memory() for _ in range(3)), driver.stream(), driver.stream()
    driver.copy(other, memory, one)
    driver.copy(third, memory, two)
    assert not violations(driver, one, two)
    driver.copy(other, memory, one)
    driver.set(memory, two)
    assert len(violations(driver, one, two)) == 1


def test_an_event_between_two_streams_is_an_edge(driver):
    memory, one, two, event = driver.memory(), driver.stream(), driver.stream(), driver.made("cuEventCreate", 0)
    driver.set(memory, one)
    driver.cuEventRecord(event, one)
    driver.cuStreamWaitEvent(two, event, 0)
    driver.set(memory, two)
    assert not violations(driver, one, two)


def test_a_host_that_waits_between_two_streams_is_an_edge(driver):
    memory, one, two = driver.memory(), driver.stream(), driver.stream()
    driver.set(memory, one)
    driver.cuStreamSynchronize(one)
    driver.set(memory, two)
    assert not violations(driver, one, two)


def forked(driver, memory, *, joined_before):
    """A graph of two nodes that write `memory`, captured on two streams, and launched."""
    one, two = driver.stream(), driver.stream()
    fork, join = driver.made("cuEventCreate", 0), driver.made("cuEventCreate", 0)
    driver.cuStreamBeginCapture_v2(one, THREAD_LOCAL)
    driver.cuEventRecord(fork, one)
    driver.cuStreamWaitEvent(two, fork, 0)
    driver.set(memory, two)
    driver.cuEventRecord(join, two)
    if joined_before:
        driver.cuStreamWaitEvent(one, join, 0)
    driver.set(memory, one)
    driver.cuStreamWaitEvent(one, join, 0)
    graph = ctypes.c_void_p()
    driver.cuStreamEndCapture(one, ctypes.byref(graph))
    launched = driver.made("cuGraphInstantiateWithFlags", graph, ctypes.c_ulonglong(0))
    driver.cuGraphLaunch(launched, one)
    return one


def test_two_nodes_of_a_graph_without_an_edge_are_a_race(driver):
    (found,) = violations(driver, forked(driver, driver.memory(), joined_before=False))
    assert "no edge puts them in order" in found


def test_two_nodes_of_a_graph_with_an_edge_are_none(driver):
    assert not violations(driver, forked(driver, driver.memory(), joined_before=True))


def test_the_use_of_freed_memory_is_seen(driver):
    memory, stream = driver.memory(), driver.stream()
    driver.cuMemFree_v2(memory)
    driver.set(memory, stream)
    (found,) = violations(driver, stream)
    assert "that was freed" in found


def test_memory_is_freed_once(driver):
    memory = driver.memory()
    driver.cuMemFree_v2(memory)
    assert driver.library.cuMemFree_v2(memory) != 0
    assert len(violations(driver)) == 1


def test_work_on_a_stream_of_another_device_is_refused(driver):
    memory, stream = driver.memory(), driver.stream()
    while driver.current():
        driver.cuCtxSetCurrent(None)
    assert driver.library.cuMemsetD8Async(memory, 1, ctypes.c_size_t(64), stream) != 0
    driver.context(0)
    (found,) = violations(driver, stream)
    assert "while the context of device -1 is current" in found


def test_a_host_function_may_not_call_the_driver(driver):
    stream, count = driver.stream(), ctypes.c_int()
    function = HOST_FUNCTION(lambda _: driver.library.cuDeviceGetCount(ctypes.byref(count)) and None)
    driver.cuLaunchHostFunc(stream, function, None)
    (found,) = violations(driver, stream)
    assert found == "cuDeviceGetCount is called by a host function"


def test_an_allocation_during_a_capture_is_refused_unless_the_thread_says_so(driver):
    stream, memory, graph = driver.stream(), ctypes.c_void_p(), ctypes.c_void_p()
    mode = ctypes.c_int(RELAXED)
    driver.cuStreamBeginCapture_v2(stream, THREAD_LOCAL)
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    driver.cuMemHostAlloc(ctypes.byref(memory), ctypes.c_size_t(64), 0)
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    driver.cuStreamEndCapture(stream, ctypes.byref(graph))
    assert not violations(driver)
    driver.cuStreamBeginCapture_v2(stream, THREAD_LOCAL)
    assert driver.library.cuMemHostAlloc(ctypes.byref(memory), ctypes.c_size_t(64), 0) != 0
    assert driver.library.cuStreamEndCapture(stream, ctypes.byref(graph)) != 0
    (found,) = violations(driver)
    assert found == "cuMemHostAlloc while a stream of this thread is captured"


def test_a_capture_that_is_not_joined_is_an_error(driver):
    memory, one, two = driver.memory(), driver.stream(), driver.stream()
    fork, graph = driver.made("cuEventCreate", 0), ctypes.c_void_p()
    driver.cuStreamBeginCapture_v2(one, THREAD_LOCAL)
    driver.cuEventRecord(fork, one)
    driver.cuStreamWaitEvent(two, fork, 0)
    driver.set(memory, two)
    assert driver.library.cuStreamEndCapture(one, ctypes.byref(graph)) != 0


def test_a_call_answers_the_error_that_a_test_asks_for(driver):
    count = ctypes.c_int()
    with model.failing("cuDeviceGetCount", nth=2, error=model.OUT_OF_MEMORY) as answered:
        statuses = [driver.library.cuDeviceGetCount(ctypes.byref(count)) for _ in range(3)]
    assert statuses == [0, model.OUT_OF_MEMORY, 0]
    assert answered() == 0  # asking is over, and so is counting
