"""Compiles JAX programs for a GPU that is not there.

jax's GPU plugins can compile for a description of a device. What they need beside it differs: the CUDA plugin works
without a driver; the ROCm plugin links the ROCm libraries, for which `rocm_stubs` makes stand-ins. Nothing is run.
"""

import ctypes
import functools
import importlib
import mmap
import os
import re
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dumps
import rocm_stubs

_TEMPORARY = tempfile.TemporaryDirectory(prefix="entangle-gpu-compile-")  # is removed with this object
DUMPS = Path(_TEMPORARY.name)

# NVIDIA's H100 SXM (sm_90), as its data sheet has it. Not every CUDA plugin has descriptions of devices in it.
H100 = """
platform_name: "CUDA"
device_description_str: "NVIDIA H100 80GB HBM3"
runtime_version { major: 12 minor: 9 patch: 0 }
dnn_version_info { major: 9 minor: 8 patch: 0 }
gpu_device_info {
  cuda_compute_capability { major: 9 minor: 0 }
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  l2_cache_size: 52428800
  device_memory_size: 85899345920
  memory_bandwidth: 3350000000000
}
"""

# AMD's Instinct MI300X (gfx942): the name of its description in the ROCm plugin.
MI300X = "MI300X"

# Autotuning runs candidates on the device, so it is off; so is the Triton path for dots, which cannot do without.
FLAGS = (
    "--xla_gpu_autotune_level=0",
    "--xla_gpu_enable_triton_gemm=false",
    *dumps.flags(DUMPS),
)


def prepare(platform):
    """Set the environment up. Before jax is imported."""
    assert "jax" not in sys.modules, "too late: jax has read its environment"
    assert "XLA_FLAGS" not in os.environ, "XLA_FLAGS are set, and would change what is compiled"
    os.environ["XLA_FLAGS"] = " ".join(FLAGS)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"  # whether its libraries are there: they are not
    if platform == "rocm":
        _load_stubs()


@functools.cache
def devices(platform, count=1):
    """Compile-only devices."""
    from jax.experimental import topologies

    if platform == "rocm":
        _register_rocm()
    description = H100 if platform == "cuda" else _description(_path_of_plugin(), MI300X)
    topology = topologies.get_topology_desc("", platform, target_config=description, topology=f"1x{count}x1")
    assert len(topology.devices) == count
    return topology.devices


@dataclass(frozen=True)
class Compiled:
    """A compiled program."""

    name: str
    text: str
    """Its HLO, optimized and scheduled."""
    stage: Any
    """jax's own object for it."""

    def operations(self):
        """How often each operation stands in it, in all computations."""
        return Counter(re.findall(r"^\s+(?:ROOT )?%\S+ = (?:\(.*?\)|\S+) ([a-z][\w-]*)\(", self.text, re.MULTILINE))

    def native_calls(self, target="entangle"):
        """The lines of its calls of a native target."""
        return [line for line in self.text.splitlines() if f'custom_call_target="{target}"' in line]

    def shape_of(self, name):
        """Type, dimensions and layout of an operand."""
        (shape,) = re.findall(rf"^\s+(?:ROOT )?{re.escape(name)} = (\S+) ", self.text, re.MULTILINE)
        return shape

    def thunks(self):
        """What it runs: see `dumps.thunks`."""
        return dumps.thunks(DUMPS, self.name)


def compile_for(platform, function, *arguments, mesh=None, compiler_options=None, **options):
    """Compile a function of arrays like these for a GPU. With `mesh`, arguments have shardings over it."""
    import jax

    if mesh is None:
        mesh = jax.sharding.Mesh(devices(platform), ("only",))
        everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        arguments = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere), arguments)
    traced = jax.jit(function, **options).trace(*arguments)
    compiled = traced.lower(lowering_platforms=(platform,)).compile(compiler_options)
    return Compiled(function.__name__, compiled.as_text(), compiled)


def _rocm_plugin():
    """The folder of the ROCm plugin."""
    (folder,) = (folder for entry in sys.path for folder in Path(entry, "jax_plugins").glob("xla_rocm*"))
    return folder


def _path_of_plugin():
    return str(_rocm_plugin() / "xla_rocm_plugin.so")


def _description(plugin, device):
    """The description of a device, as text, which is one of those that a plugin has in its read-only data."""
    with open(plugin, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        name = f'device_description_str: "{device}"'.encode()
        at = data.find(name)
        while at >= 0:
            text = data[data.rfind(b"\0", 0, at) + 1 : data.find(b"\0", at)]
            if b"gpu_device_info" in text:
                return text.decode()
            at = data.find(name, at + 1)
    raise LookupError(f"{plugin} has no description of {device}")


def _load_stubs():
    for library in rocm_stubs.make(_rocm_plugin().parent.parent, _TEMPORARY.name):
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)


@functools.cache
def _register_rocm():
    """What the ROCm plugin does when jax loads it, without its look for a device."""
    from jax._src import xla_bridge
    from jax._src.lib import xla_client

    plugin = importlib.import_module(f"jax_plugins.{_rocm_plugin().name}")
    plugin.initialize = lambda: None
    xla_bridge.discover_pjrt_plugins()
    options = xla_client.generate_pjrt_gpu_plugin_options() | {"platform_name": "ROCM"}
    api = xla_bridge.register_plugin("rocm", priority=500, library_path=_path_of_plugin(), options=options)
    extension = plugin.rocm_plugin_extension
    xla_client.register_custom_type_handler("ROCM", functools.partial(extension.register_custom_type, api))
    xla_client.register_custom_call_handler("ROCM", functools.partial(extension.register_custom_call_target, api))
    for name, value in extension.ffi_types().items():
        xla_client.register_custom_type(name, value, platform="ROCM")
    for name, value in extension.ffi_handlers().items():
        xla_client.register_custom_call_target(name, value, platform="ROCM", api_version=1)
