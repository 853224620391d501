"""`python links.py FOLDER`: every link of a built site leads somewhere, and nothing on its pages is fetched from elsewhere."""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("img", "src"), ("script", "src"), ("link", "href"), ("source", "srcset"), ("iframe", "src")}


class Page(HTMLParser):
    """What a page links to, what it loads, and the places in it that can be linked to."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loads, self.anchors = [], [], {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            elif (tag, name) == ("a", "href"):
                self.links.append(value)
            elif (tag, name) in LOADED and ("rel", "canonical") not in attributes:
                self.loads.append(value)


def faults(site):
    """A line for each link that leads nowhere and for each thing that another host would have to give."""
    # The Rust docs are made by rustdoc, which checks its own links: they are only linked to.
    pages = {
        path: Page(path) for path in sorted(site.rglob("*.html")) if "rust" not in path.relative_to(site).parts[:1]
    }
    assert pages, f"no page in {site}"
    for path, page in pages.items():
        where = path.relative_to(site)
        for link in page.links + page.loads:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loads or parts.scheme not in {"https", "mailto"}:
                    yield f"{where}: {link} is not part of the site"
                continue
            # A path that begins with a slash is on the page for addresses that do not exist.
            start = site if parts.path.startswith("/") else path.parent
            target = (start / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                yield f"{where}: {link} leads nowhere"
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{where}: {link} names a place that is not on that page"
    for path in site.rglob("*.css"):
        for address in re.findall(r"url\(\s*[\"']?(https?:[^)\"']+)", path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site)}: {address} is not part of the site"


if __name__ == "__main__":
    found = list(faults(Path(sys.argv[1]).resolve()))
    print("\n".join(found) or "links: each leads somewhere")
    sys.exit(bool(found))
