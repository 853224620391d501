"""What the site does beyond MkDocs.

Texts in the root of the repository are pages too, and pictures follow the reader's choice of light or dark. The network
is shut off, so that a page that needs it does not build.
"""

import re
import socket
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
FROM_ROOT = {
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "LICENSE": "license.md",
}
PICTURE = re.compile(r'<img alt="(?P<alt>[^"]*)" src="(?:\.\./)?(?P<path>pictures/[\w-]+\.svg)"\s*/?>')


def on_startup(**_):
    """Refuse every connection."""

    def connect(_, address):
        raise PluginError(f"the site is to be built without the network, and something connects to {address}")

    socket.socket.connect = connect


def on_files(files, config):
    """The README is the front page, and the other texts in the root are pages too."""
    for source, page in FROM_ROOT.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        if source == "LICENSE":
            text = f"# License\n\n{text}"
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown, page, **_):
    """Links that lead through the repository lead to the pages that stand for its files."""
    inside = "" if page.file.src_uri in FROM_ROOT.values() else "../"
    for source, target in FROM_ROOT.items():
        markdown = markdown.replace(f"]({inside}{source}", f"]({target}")
    return markdown if inside else markdown.replace("](docs/", "](")


def on_page_content(html, page, config, **_):
    """Put the pictures of docs/pictures into the page itself, where the style sheet reaches them."""

    def inline(match):
        path = Path(config.docs_dir) / match["path"]
        if not path.exists():
            raise PluginError(f"{page.file.src_uri} shows {match['path']}, which does not exist")
        if not match["alt"]:
            raise PluginError(f"{page.file.src_uri} shows {match['path']} without saying what is to be seen")
        svg = path.read_text(encoding="utf-8")
        svg = svg.replace("<svg ", f'<svg role="img" aria-label="{match["alt"]}" ', 1)
        return f'<span class="pane">{svg}</span>'

    return PICTURE.sub(inline, html)
