"""Makes libraries that stand in for those of ROCm, so that jax's ROCm plugin can be loaded without ROCm.

Each function that the plugin takes from a ROCm library becomes one that does nothing and returns an error; those that
are called when the plugin is loaded, or asked how many devices there are, say what is true: there is no device.
Needs `readelf` and a C compiler.
"""

import os
import re
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

# Libraries that every Linux has.
_SYSTEM = re.compile(r"(lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)|ld-linux.*)\.so")
# Symbols that the interpreter and the system's libraries have.
_ELSEWHERE = re.compile(r"_?Py|_ZNK?St")
_SYSTEM_VERSIONS = re.compile(r"GLIBC|GCC_|CXXABI")

# Which library an unversioned symbol belongs to is not said anywhere: by its prefix.
_PREFIXES = (
    (r"_ZN?K?13hipblaslt|hipblasLt", "libhipblaslt."),
    (r"hipfft", "libhipfft."),
    (r"miopen", "libMIOpen."),
    (r"nccl", "librccl."),
    (r"rocprofiler", "librocprofiler-sdk."),
    (r"rocsolver", "librocsolver."),
    (r"rocblas", "librocblas."),
    (r"hipsolver", "libhipsolver."),
    (r"hipsparse", "libhipsparse."),
    (r"hipblas", "libhipblas."),
    (r"amdsmi", "libamd_smi."),
    (r"amdgpu_", "librocm_sysdeps_drm_amdgpu."),
    (r"drm", "librocm_sysdeps_drm."),
    (r"numa", "librocm_sysdeps_numa."),
    (r"hsa", "libhsa-runtime64."),
    (r"_*hip", "libamdhip64."),
)

_NO_DEVICE = 100  # hipErrorNoDevice
_SPECIAL = {
    "hipGetDeviceCount": f"int hipGetDeviceCount(int *count) {{ if (count) *count = 0; return {_NO_DEVICE}; }}",
    "hipInit": f"int hipInit(unsigned flags) {{ return {_NO_DEVICE}; }}",
    "hipDriverGetVersion": "int hipDriverGetVersion(int *version) { if (version) *version = 70000000; return 0; }",
    "hipRuntimeGetVersion": "int hipRuntimeGetVersion(int *version) { if (version) *version = 70000000; return 0; }",
    "hipGetErrorString": 'const char *hipGetErrorString(int error) { return "no ROCm device"; }',
    "hipGetErrorName": 'const char *hipGetErrorName(int error) { return "hipErrorNoDevice"; }',
    "hipGetLastError": "int hipGetLastError(void) { return 0; }",
    "__hipRegisterFatBinary": "static void *binary; void **__hipRegisterFatBinary(void *data) { return &binary; }",
    "hsa_status_string": 'int hsa_status_string(int status, const char **text) { *text = "no device"; return 0; }',
    "rocprofiler_get_status_string": 'const char *rocprofiler_get_status_string(int status) { return "no device"; }',
    "ncclGetErrorString": 'const char *ncclGetErrorString(int error) { return "no device"; }',
    "ncclGetLastError": 'const char *ncclGetLastError(void *communicator) { return "no device"; }',
    "numa_available": "int numa_available(void) { return -1; }",
}


@dataclass(frozen=True)
class Model:
    """Functions of a library that do more than to return an error."""

    path: Path
    """The object that they are in."""
    functions: set
    options: list
    """What the linker needs for them. They need `gpu_model_missing(name)`, which is called by every other function."""


def make(site, folder, models=None):
    """Make the libraries that the plugins in `site` need, in `folder`; return their paths in the order to load them.

    `models` has the `Model` of some of them, by name.
    """
    plugins = [*Path(site).glob("jax_plugins/xla_rocm*/*.so"), *Path(site).glob("jax_rocm*_plugin/*.so")]
    assert plugins, f"no ROCm plugin in {site}"
    needed, versions, symbols = {}, defaultdict(set), set()
    for plugin in plugins:
        elf = subprocess.run(
            ["readelf", "-dVW", "--dyn-syms", plugin], capture_output=True, text=True, check=True
        ).stdout
        needed |= dict.fromkeys(each for each in re.findall(r"\(NEEDED\).*\[(.*)\]", elf) if not _SYSTEM.match(each))
        for library, names in _needed_versions(elf).items():
            for name in names:
                versions[name].add(library)
        symbols |= set(re.findall(r" (?:GLOBAL) .* UND (\S+?)(?:@(\S+))?(?: \(\d+\))?$", elf, re.MULTILINE))
    symbols = {
        (name, version)
        for name, version in symbols
        if not _ELSEWHERE.match(name) and not _SYSTEM_VERSIONS.match(version)
    }
    versioned = {name for name, version in symbols if version}
    contents = {library: defaultdict(list) for library in needed}
    for version, libraries in versions.items():
        for library in libraries:
            contents[library][version] = []  # even without a symbol, or the loader refuses the library
    for name, version in sorted(symbols):
        if version or name not in versioned:  # one reference with a version serves those without
            contents[_library_of(name, versions[version] if version else needed)][version].append(name)
    models = models or {}
    assert models.keys() <= needed.keys(), f"the plugins need {', '.join(needed)}"
    return [
        _build(library, contents[library], folder, models.get(library)) for library in sorted(needed, key=_load_order)
    ]


def _needed_versions(elf):
    """`{library: versions of its symbols that are asked for}`."""
    found, library = defaultdict(set), None
    _, _, section = elf.partition(".gnu.version_r")
    for line in section.splitlines():
        if file := re.search(r"File: (\S+)", line):
            library = file[1]
        elif (name := re.search(r"Name: (\S+)", line)) and library and not _SYSTEM.match(library):
            found[library].add(name[1])
    return found


def _library_of(name, candidates):
    if len(candidates) == 1:
        return next(iter(candidates))
    for pattern, prefix in _PREFIXES:
        if re.match(pattern, name):
            for library in candidates:
                if library.startswith(prefix):
                    return library
    raise LookupError(f"{name} may be from any of {', '.join(sorted(candidates))}: add its prefix to _PREFIXES")


def _load_order(library):
    """The HIP runtime first: others lean on it."""
    return not library.startswith("libamdhip64"), not library.startswith("librocblas"), library


def _build(library, contents, folder, model=None):
    lines, script = [], []
    for version, names in sorted(contents.items()):
        if model:
            asked = 'int {0}(void) {{ void gpu_model_missing(const char *); gpu_model_missing("{0}"); return 801; }}'
            lines += [asked.format(name) for name in names if name not in model.functions]
        else:
            lines += [_SPECIAL.get(name, f"int {name}(void) {{ return 1; }}") for name in names]
        if version:
            script.append(f"{version} {{ {'global: ' if names else ''}{' '.join(f'{name};' for name in names)} }};")
    path = os.path.join(folder, library)
    source, exports = f"{path}.c", f"{path}.map"
    Path(source).write_text("\n".join(lines) + "\n")
    command = [
        os.environ.get("CC", "cc"),
        "-w",
        "-shared",
        "-fPIC",
        "-fno-builtin",
        "-o",
        path,
        source,
        f"-Wl,-soname,{library}",
    ]
    if model:
        command += [model.path, *model.options]
    if script:
        Path(exports).write_text("\n".join(script) + "\n")
        command.append(f"-Wl,--version-script={exports}")
    if model:
        command.append("-lstdc++")
    subprocess.run(command, check=True)
    return path
