"""What XLA's thunk passes made of a program, read from its dump. To be used before jax is imported."""

import re
from collections import Counter

# What is asked about thunks is asked of functions with this in their name: dumping all would fill the disk.
DUMPED = "dumped"


def flags(folder):
    """XLA's flags for the dump."""
    return [f"--xla_dump_to={folder}", f"--xla_dump_hlo_module_re=.*{DUMPED}.*", "--xla_dump_hlo_as_text"]


def thunks(folder, name):
    """What a dumped program runs: `{kind: how often}` outside of graphs, and the same for each graph."""
    files = sorted(folder.glob(f"module_*.jit_{name}.*thunk_sequence*.txt"))
    before = [file for file in files if "after_thunk_passes" not in file.name]
    assert len(before) == 1, f"{name} was dumped {len(before)} times, wanted once: is its name its own?"
    # The second file is there only if the passes changed something.
    outside, graphs = Counter(), []
    for line in filter(str.strip, max(files, key=lambda file: file not in before).read_text().splitlines()):
        indent, kind = re.match(r"(\s*)\d+: (k\w+)", line).groups()
        if indent:
            graphs[-1][kind] += 1
        elif kind == "kCommandBuffer":
            graphs.append(Counter())
        else:
            outside[kind] += 1
    return outside, graphs
