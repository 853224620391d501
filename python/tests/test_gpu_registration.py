"""Which handlers are registered for GPUs, and why: no GPU and no plugin is needed to know."""

import importlib.metadata
import json
import subprocess
import sys

import jaxlib
import pytest

from entangle_jax import _native, _registration

GPUS = ("CUDA", "ROCM")


@pytest.fixture
def versions(monkeypatch):
    """Pretend that these are installed: `versions(jaxlib, {package: version})`."""

    def pretend(jaxlib_version, packages):
        def version(name):
            if name not in packages:
                raise importlib.metadata.PackageNotFoundError(name)
            return packages[name]

        monkeypatch.setattr(jaxlib, "__version__", jaxlib_version)
        monkeypatch.setattr(importlib.metadata, "version", version)
        monkeypatch.setitem(sys.modules, "jax_plugins", object())

    return pretend


def test_every_platform_has_the_same_targets_and_gpus_have_each_handler_twice():
    targets = _native.targets()
    assert set(targets) == {"cpu", *GPUS}
    assert set(targets["CUDA"]) == set(targets["ROCM"]) == set(targets["cpu"])
    assert all(in_graph is None for _, in_graph in targets["cpu"].values())
    assert all(plain and in_graph for gpu in GPUS for plain, in_graph in targets[gpu].values())


def test_what_was_registered_is_known_with_the_reason():
    found = _registration.registered()
    assert found["cpu"] == (tuple(_native.targets()["cpu"]), False, "there are no graphs")
    for gpu in GPUS:
        assert set(found[gpu].targets) == set(_native.targets()[gpu])
        assert jaxlib.__version__ in found[gpu].why
        assert found[gpu].graphs == (_registration._release(jaxlib.__version__) >= (0, 10, 2))


@pytest.mark.parametrize(
    ("jaxlib_version", "packages", "graphs", "why"),
    [
        ("0.10.1", {}, False, "jaxlib 0.10.1 is older than 0.10.2"),
        ("0.10.2", {}, True, "jaxlib 0.10.2: 0.10.2 or newer"),
        ("0.10.2.dev20260101+abc", {}, True, "jaxlib 0.10.2.dev20260101+abc"),
        ("0.12.0.1", {"jax-cuda12-pjrt": "0.12.0.1"}, True, "jaxlib 0.12.0.1 and jax-cuda12-pjrt 0.12.0.1"),
        ("0.12.0.1", {"jax-cuda12-pjrt": "0.10.1"}, False, "jax-cuda12-pjrt 0.10.1 is older than 0.10.2"),
        (
            "0.12.0",
            {"jax-cuda12-pjrt": "0.12.0", "jax-cuda13-pjrt": "0.10.0"},
            False,
            "jax-cuda13-pjrt 0.10.0 is older",
        ),
        ("1.0", {"jax-cuda13-pjrt": "1.0"}, True, "jax-cuda13-pjrt 1.0"),
    ],
)
def test_an_older_plugin_beside_a_newer_jaxlib_gets_the_handler_that_it_can_run(
    versions, jaxlib_version, packages, graphs, why
):
    versions(jaxlib_version, packages)
    found, reason = _registration.accepts_empty_capture("CUDA")
    assert found == graphs
    assert why in reason


def test_the_plugin_of_another_platform_says_nothing(versions):
    versions("0.12.0.1", {"jax-cuda12-pjrt": "0.10.0"})
    assert _registration.accepts_empty_capture("ROCM") == (True, "jaxlib 0.12.0.1: 0.10.2 or newer")
    versions("0.12.0.1", {"jax-rocm7-pjrt": "0.10.0"})
    assert _registration.accepts_empty_capture("ROCM")[0] is False


def test_without_plugins_the_disk_is_not_searched(versions, monkeypatch):
    versions("0.12.0.1", {"jax-cuda12-pjrt": "0.10.0"})
    monkeypatch.delitem(sys.modules, "jax_plugins")
    assert _registration.accepts_empty_capture("CUDA")[0] is True


@pytest.mark.parametrize("graphs", [False, True])
def test_the_handler_that_is_registered_is_the_one_that_was_chosen(versions, monkeypatch, graphs):
    versions("0.12.0.1" if graphs else "0.10.0", {})
    capsules = {}
    monkeypatch.setattr(_registration, "_registered", {})
    monkeypatch.setattr(_registration._partitioning, "register", lambda target: None)
    monkeypatch.setattr(
        _registration.jax.ffi,
        "register_ffi_target",
        lambda name, capsule, platform: capsules.__setitem__((platform, name), capsule),
    )
    targets = _native.targets()
    monkeypatch.setattr(_native, "targets", lambda: targets)
    _registration.register()
    for gpu in GPUS:
        for name, handlers in targets[gpu].items():
            assert capsules[gpu, name] is handlers[graphs]
    for name, (plain, _) in targets["cpu"].items():
        assert capsules["cpu", name] is plain
    assert {name: found.graphs for name, found in _registration.registered().items()} == {
        "cpu": False,
        "CUDA": graphs,
        "ROCM": graphs,
    }


def test_info_shows_both_facts():
    command = [sys.executable, "-m", "entangle_jax", "info", "--json"]
    shown = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["platforms"]
    for gpu in GPUS:
        found = _registration.registered()[gpu]
        assert shown[gpu] == {"targets": list(found.targets), "graphs": found.graphs, "why": found.why}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_importing_the_package_opens_no_driver():
    # The drivers are opened by the slots alone, and only when a call runs on a GPU.
    code = "import entangle_jax; print(open('/proc/self/maps').read())"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "_native" in loaded
    assert not [
        line for line in loaded.splitlines() if any(name in line for name in ("libcuda", "amdhip", "libnvidia"))
    ]
