# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the links of a built site that lead nowhere: to no file, or to no anchor of a page."""
import html.parser
import pathlib
import urllib.parse


class Page(html.parser.HTMLParser):
    """The anchors and the links of one page."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.links = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors.update(filter(None, (values.get("id"), values.get("name"))))
        for name in ("href", "src"):
            if values.get(name):
                self.links.append(values[name])


def dead_links(site):
    pages = {path: Page(path.read_text()) for path in pathlib.Path(site).rglob("*.html")}
    for path, page in sorted(pages.items()):
        if path.name == "404.html":
            continue  # its links are those of a server's root
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            goal = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path.resolve()
            if goal.is_dir():
                goal /= "index.html"
            if not goal.exists():
                yield f"{path.relative_to(site)}: {link} leads nowhere"
            elif parts.fragment and goal.suffix == ".html":
                known = pages.get(goal) or pages.get(path.parent / parts.path)
                anchors = next(page.anchors for other, page in pages.items() if other.resolve() == goal) if known is None else known.anchors
                if urllib.parse.unquote(parts.fragment) not in anchors and parts.fragment != "__skip":
                    yield f"{path.relative_to(site)}: {link}: the page has no such anchor"
