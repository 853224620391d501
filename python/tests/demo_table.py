"""The table of docs/why.md, from what the demo printed.

    python demo_table.py OUTPUT...      each of them what `python -m entangle_jax demo --json` printed, on one version of jax

`ci/demo --docs` makes them. They are kept in docs/demo.json, so that a test can tell whether the table is still theirs.
"""

import json
import re
import sys
from pathlib import Path

FIGURES = "docs/demo.json"
PAGE = "docs/why.md"

PROGRAMS = {
    "read, write, read": ["read-write-read"],
    "2 to 6 pairs of write and read": [f"chain-{length}" for length in range(2, 7)],
    "a read that waits for sorts, a write, a read": ["sorts"],
    "the same in a `fori_loop`": ["loop"],
}
"""The rows, each with the demo's scenarios that it sums up."""

_PLACE = re.compile(r"(?<=<!-- ci/demo --docs writes this table -->\n)(?:\|.*\n)+")


def table(outputs):
    """The lines of the table: right runs, and whether there is a data path."""
    methods = max((list(dict.fromkeys(row["method"] for row in output["results"])) for output in outputs), key=len)
    names = [method if method == "nothing" else f"`{method}`" for method in methods]
    yield f"| program | jaxlib | {' | '.join(names)} |"
    yield "| --- " * (len(methods) + 2) + "|"
    for program, scenarios in PROGRAMS.items():
        for output in outputs:
            found = [[r for r in output["results"] if r["method"] == m and r["scenario"] in scenarios] for m in methods]
            name = program if output is outputs[0] else ""
            yield f"| {name} | {output['jaxlib']} | " + " | ".join(map(_cell, found)) + " |"


def _cell(rows):
    if not rows:
        return "not in this jax"
    fewest, most = min(row["right"] for row in rows), max(row["right"] for row in rows)
    right = f"{fewest} of {rows[0]['runs']}" if fewest == most else f"{fewest} to {most} of {rows[0]['runs']}"
    text = f"{right}, {'path' if all(row['data_path'] for row in rows) else 'no path'}"
    return f"**{text}**" if all(row["data_path"] and row["right"] == row["runs"] for row in rows) else text


def in_page(text):
    """The table that stands in the text of the page."""
    return _PLACE.search(text)[0]


def write(root, outputs):
    """Keep the figures, and put the table that they make into the page."""
    # One row of the demo is one line, so that a change of it shows as one.
    shown = json.dumps(outputs, indent=1)
    shown = re.sub(r"\{[^{}\[\]]*\}", lambda row: " ".join(row[0].split()), shown)
    (root / FIGURES).write_text(shown + "\n")
    page = root / PAGE
    lines = "".join(f"{line}\n" for line in table(outputs))
    page.write_text(_PLACE.sub(lambda _: lines, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).parents[2], [json.loads(Path(path).read_text()) for path in sys.argv[1:]])
