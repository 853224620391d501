"""Builds the model of the driver for one jax plugin: `build.py cuda12|cuda13|rocm SITE CUDA_HEADERS OUT`.

OUT gets the libraries that the plugin opens: the driver, and beside it those of CUDA or ROCm. Each holds the functions
that the model has, and for every other function that the plugin in SITE names one that answers "not supported" and says
that it was asked. Objects are kept beside OUT and built again when their sources have changed.
"""

import argparse
import hashlib
import mmap
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent.parent / "python" / "tests_gpu_compile"))

import rocm_stubs  # noqa: E402 (from the folder above)

NOT_SUPPORTED = 801
CUDART = {12: 12090, 13: 13000}
"""What CUDA's runtime says that it is, by its major version."""
COMPILE = ["g++", "-std=c++20", "-O1", "-g1", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]


@dataclass(frozen=True)
class Library:
    """A library beside the driver, and what its functions that are not in the model answer."""

    source: str
    soname: str
    names: str
    error: int
    says: bool = True
    """Whether it says so when one of them is asked. Not where XLA asks for what it can do without."""


def cuda_libraries(major):
    """Those that XLA opens."""
    return (
        Library("nvml", "libnvidia-ml.so.1", r"nvml[A-Z][A-Za-z]+(_v\d)?", 3, says=False),
        Library(
            "cudart", f"libcudart.so.{major}", r"(__)?cuda[A-Z][A-Za-z]{3,}\d?[A-Z]*(_v\d|_ptsz|_ptds)?", NOT_SUPPORTED
        ),
        Library("cublas", f"libcublas.so.{major}", r"cublas(?!Lt)[A-Z][A-Za-z0-9]+(_v\d|_64)*", 15),
        Library("cublasLt", f"libcublasLt.so.{major}", r"cublasLt[A-Z][A-Za-z0-9]+(_v\d|_internal)?", 15),
        Library("cudnn", "libcudnn.so.9", r"cudnn[A-Z][A-Za-z0-9]+(_v\d)?", 3000),
        Library("nccl", "libnccl.so.2", r"nccl[A-Z][A-Za-z]+", 5, says=False),
    )


class Builder:
    """Compiles and links for one plugin."""

    def __init__(self, headers, objects):
        self.compile = [*COMPILE, "-isystem", headers]
        self.objects = objects
        objects.mkdir(parents=True, exist_ok=True)

    def object(self, source, *options):
        """The object of a C++ source, by what is in it and in the headers beside it."""
        command = [*self.compile, *options]
        text = b"".join(path.read_bytes() for path in [source, *sorted(source.parent.glob("*.h"))])
        digest = hashlib.sha256(text + " ".join(map(str, command)).encode()).hexdigest()[:16]
        out = self.objects / f"{source.stem}-{digest}.o"
        if not out.exists():
            partial = out.with_suffix(f".{os.getpid()}")
            subprocess.run([*command, "-c", source, "-o", partial], check=True)
            partial.replace(out)
        return out

    def stand_ins(self, name, functions, error, says=True):
        """The object of functions that only answer an error."""
        lines = ["void gpu_model_missing(const char *);"]
        for function in sorted(functions):
            lines.append(f'__attribute__((visibility("default"))) int {function}(void) {{')
            lines.append((f'    gpu_model_missing("{function}");' if says else "") + f" return {error};\n}}")
        text = "\n".join(lines) + "\n"
        source = self.objects / f"{name}-missing-{hashlib.sha256(text.encode()).hexdigest()[:16]}.c"
        out = source.with_suffix(".o")
        if out.exists():
            return out
        source.write_text(text)
        subprocess.run(["gcc", "-O1", "-fPIC", "-w", "-c", source, "-o", out], check=True)
        return out


def link(out, objects, *options):
    """A library of these objects."""
    command = ["g++", "-shared", f"-Wl,-soname,{out.name}", "-o", out, *objects, *options, "-lpthread", "-ldl"]
    subprocess.run(command, check=True)


def defined(objects):
    """The functions that objects give to others."""
    symbols = subprocess.run(["nm", "--defined-only", *objects], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in symbols.splitlines() if line.split()[1:2] == ["T"]}


def words_in(plugin):
    """All that may be a C name in the plugin."""
    with open(plugin, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return {word.decode() for word in re.findall(rb"(?<=\0)[A-Za-z_][A-Za-z0-9_]{3,80}(?=\0)", data)}


def driver_names(names, headers):
    """The driver's functions that the plugin or CUDA's header names."""
    declared = re.findall(r"CUresult CUDAAPI (cu\w+)", (Path(headers) / "cuda.h").read_text())
    others = r"cu(blas|dnn|fft|solver|sparse|pti|rand|da)"
    return {
        name for name in names | set(declared) if re.match(r"cu[A-Z][A-Za-z]{3}", name) and not re.match(others, name)
    }


def build_driver(builder, out, names, headers):
    """libcuda.so.1, which holds the core of the model."""
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        objects = list(threads.map(builder.object, sorted((HERE / "src").glob("*.cc"))))
    missing = driver_names(names, headers) - defined(objects)
    link(out / "libcuda.so.1", [*objects, builder.stand_ins("cuda", missing, NOT_SUPPORTED)])


def build_cuda(builder, out, plugin, headers, major):
    """The driver and the libraries beside it."""
    names = words_in(plugin)
    build_driver(builder, out, names, headers)
    for library in cuda_libraries(major):
        known = builder.object(HERE / "libraries" / f"{library.source}.cc", f"-DCUDART={CUDART[major]}")
        missing = {name for name in names if re.fullmatch(library.names, name)} - defined([known])
        stand_ins = builder.stand_ins(library.source, missing, library.error, library.says)
        link(out / library.soname, [known, stand_ins], "-Wl,-rpath,$ORIGIN", f"-L{out}", "-l:libcuda.so.1")


def build_rocm(builder, out, site, headers):
    """HIP on the same core, and stand-ins for the other libraries of ROCm."""
    build_driver(builder, out, set(), headers)
    known = builder.object(HERE / "libraries" / "hip.cc")
    options = ["-Wl,-rpath,$ORIGIN", f"-L{out}", "-l:libcuda.so.1"]
    rocm_stubs.make(site, out, {"libamdhip64.so.7": rocm_stubs.Model(known, defined([known]), options)})


def main():
    """Build for one plugin."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gpu", choices=("cuda12", "cuda13", "rocm"))
    parser.add_argument("site", type=Path, help="the site-packages that the plugin is in")
    parser.add_argument("headers", help="the folder that cuda.h is in")
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    builder = Builder(arguments.headers, arguments.out.parent / "objects")
    if arguments.gpu == "rocm":
        build_rocm(builder, arguments.out, arguments.site, arguments.headers)
        return
    major = int(arguments.gpu.removeprefix("cuda"))
    (plugin,) = arguments.site.glob(f"jax_plugins/xla_cuda{major}/xla_cuda_plugin.so")
    build_cuda(builder, arguments.out, plugin, arguments.headers, major)


if __name__ == "__main__":
    main()
