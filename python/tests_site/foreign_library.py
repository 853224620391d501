"""klujax, from "what are its calls" to the test that proves the order, from what the site says.

`python foreign_library.py WHEEL`
"""

from project import build

build("libraries.md", ["klujax, step by step"])
