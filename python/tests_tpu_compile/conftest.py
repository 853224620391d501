"""Compiles for TPU chips that are not there. `ci/tpu-compile` makes the environments and calls this."""

import os
import sys
from pathlib import Path

assert "jax" not in sys.modules, "too late: jax has read its environment"
os.environ |= {
    "JAX_PLATFORMS": "cpu",  # or jax looks for chips
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",  # or libtpu asks the machine what it is
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # or one process at a time may have it, as if it had chips
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
sys.path.append(str(Path(__file__).parent.parent / "tests"))
