"""jax looks for the device files of a GPU before it asks the driver. The model has none, so jax is told of some."""

import importlib.abc
import importlib.util
import sys


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        del path, target
        if name != "jax._src.hardware_utils":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module.has_visible_nvidia_gpu = lambda: True
            module.num_available_amd_gpus = lambda stop_at=None: 1

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Finder())
