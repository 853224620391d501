"""The table of docs/ordered.md, from what `ci/bench --ordered` measured.

The figures are kept in docs/ordered.json, so that a test can tell whether the table is still theirs.
"""

import json
import re

FIGURES = "docs/ordered.json"
PAGE = "docs/ordered.md"

_PLACE = re.compile(r"(?<=<!-- ci/bench --ordered writes this table -->\n)(?:\|.*\n)+")


def table(figures):
    """The lines of the table."""
    yield "| measured | compared | ratio | half of the pairs | limit |"
    yield "| --- | --- | --- | --- | --- |"
    for row in figures["rows"]:
        limit = "" if row["limit"] is None else row["limit"]
        spread = f"{row['low']:.2f} to {row['high']:.2f}"
        yield f"| {row['measure']} | {row['compared']} | {row['value']:.2f} | {spread} | {limit} |"


def in_page(text):
    """The table that stands in the text of the page."""
    return _PLACE.search(text)[0]


def write(root, figures):
    """Keep the figures, and put the table that they make into the page."""
    (root / FIGURES).write_text(json.dumps(figures, indent=1) + "\n")
    page = root / PAGE
    lines = "".join(f"{line}\n" for line in table(figures))
    page.write_text(_PLACE.sub(lambda _: lines, page.read_text(encoding="utf-8")), encoding="utf-8")
