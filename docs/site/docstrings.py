"""Docstrings are written to be read in a terminal; on a page their examples are blocks of code."""

import re
import textwrap

import griffe

AFTER_COLONS = re.compile(r"(?P<text>[^\s:]?) ?::\n\n(?P<code>(?: {4}[^\n]*(?:\n|$)|\n)+)")
DOCTEST = re.compile(r"^(?P<indent> *)>>>[^\n]*(?:\n(?P=indent)\S[^\n]*)*", re.MULTILINE)


def _after_colons(match):
    # As in reStructuredText, a paragraph of nothing but the colons disappears.
    text = match["text"] if match["text"] in ("", ".") else f"{match['text']}:"
    return f"{text}\n\n```python\n{textwrap.dedent(match['code']).strip()}\n```\n\n"


def _doctest(match):
    return f"{match['indent']}```pycon\n{match[0]}\n{match['indent']}```"


class Examples(griffe.Extension):
    """Puts fences around code after `::`, and around doctests."""

    def on_instance(self, *, obj, **_):
        """Change the docstring of a module, a class, a function or an attribute."""
        if obj.docstring:
            text = AFTER_COLONS.sub(_after_colons, obj.docstring.value)
            obj.docstring.value = DOCTEST.sub(_doctest, text)
