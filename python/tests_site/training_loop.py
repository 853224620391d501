"""A training loop with callbacks, over two jitted calls, from what the site says. `python training_loop.py WHEEL`."""

from project import build

build("callbacks.md", ["A training loop"])
