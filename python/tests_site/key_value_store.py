"""A native key-value store in C++ with scan, cond and vmap, from what the site says. `python key_value_store.py WHEEL`."""

from project import build

build("native.md", ["The native code", "Call it from JAX", "In a loop, in a branch, and in a batch", "Prove it"])
