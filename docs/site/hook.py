"""What the site does beyond MkDocs: the page of changes, and pictures that follow the reader's choice of light or dark."""

import re
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
PICTURE = re.compile(r'<img alt="(?P<alt>[^"]*)" src="(?:\.\./)?(?P<path>pictures/[\w-]+\.svg)"\s*/?>')


def on_files(files, config):
    """`CHANGELOG.md` is a page of the site."""
    text = (ROOT / "CHANGELOG.md").read_text().replace("](docs/", "](")
    files.append(File.generated(config, "changes.md", content=text))
    return files


def on_page_content(html, page, config, files):
    """Put the pictures of docs/pictures into the page itself, where the style sheet reaches them."""

    def inline(match):
        path = Path(config.docs_dir) / match["path"]
        if not path.exists():
            raise PluginError(f"{page.file.src_uri} shows {match['path']}, which does not exist")
        if not match["alt"]:
            raise PluginError(f"{page.file.src_uri} shows {match['path']} without saying what is to be seen")
        svg = path.read_text().replace("<svg ", f'<svg role="img" aria-label="{match["alt"]}" ', 1)
        return f"<figure>{svg}</figure>"

    return PICTURE.sub(inline, html)
