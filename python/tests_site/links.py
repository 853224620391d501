"""`python links.py FOLDER`: every link of a built site leads somewhere, and nothing on its pages is fetched from elsewhere.

With `--external` behind it, links to other sites are followed too. One whose host cannot be reached from here is listed,
and is no fault.
"""

import re
import sys
import urllib.error
import urllib.request
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


def pages_of(site):
    """The pages by their paths. Not the Rust docs, which are only linked to: rustdoc checks the links in them."""
    pages = {
        path: Page(path) for path in sorted(site.rglob("*.html")) if "rust" not in path.relative_to(site).parts[:1]
    }
    assert pages, f"no page in {site}"
    return pages


def faults(site, pages):
    """A line for each link that leads nowhere and for each thing that another host would have to give."""
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


def external_faults(pages):
    """A line for each link to another site that is not there, as far as that can be told from here."""
    for link in sorted({link for page in pages.values() for link in page.links if link.startswith("https:")}):
        request = urllib.request.Request(link, headers={"User-Agent": "entangle-jax docs"})
        try:
            with urllib.request.urlopen(request, timeout=15):
                print(f"{link}: is there")
        except urllib.error.HTTPError as error:
            if error.code in {404, 410}:
                yield f"{link} leads nowhere ({error.code})"
            else:
                print(f"{link}: not checked, its host answers with status {error.code}")
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            print(f"{link}: not checked, its host cannot be reached from here ({error})")


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    all_pages = pages_of(folder)
    found = list(faults(folder, all_pages))
    if "--external" in sys.argv[2:]:
        found += external_faults(all_pages)
    print("\n".join(found) or "links: each leads somewhere")
    sys.exit(bool(found))
