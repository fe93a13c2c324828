# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Copies the repository's pages into the site's folder, with links that lead to pages of the site."""
import os
import pathlib
import re

import header_pages
import navigation

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#:\s]*)(#[^)\s]*)?\)")
HEADER = re.compile(r"`(gradwire/[\w/]+\.h)`(?!\])")
MARKER = re.compile(r"^<!-- (?:run|file: .*|prints) -->\n", re.MULTILINE)


class RepositoryPages:
    """`headers`: the paths of the headers that have a page."""

    def __init__(self, root, pages, headers):
        self.root, self.pages, self.headers = root, set(pages), set(headers)
        self.pictures = set()

    def text(self, page):
        """The page for the site. Remembers the pictures that the page shows."""
        parts = re.split(r"(^```.*?^```$)", (self.root / page).read_text(), flags=re.MULTILINE | re.DOTALL)
        return "".join(part if part.startswith("```") else self.prose(page, part) for part in parts)

    def prose(self, page, text):
        text = MARKER.sub("", text)
        text = LINK.sub(lambda found: self.link(page, *found.groups()), text)
        return HEADER.sub(lambda found: self.header(page, found.group(1)), text)

    def link(self, page, picture, text, path, anchor):
        if not path:
            return f"{picture}[{text}]({anchor or ''})"
        goal = os.path.normpath(os.path.join(os.path.dirname(page), path))
        if picture:
            self.pictures.add(goal)
            shown = self.relative(page, goal.removeprefix("docs/"))
            return f"[![{text}]({shown})]({shown})"  # by itself a picture is as large as its words need
        for candidate in (goal, f"{goal}/README.md", f"{goal}/codecs.md"):
            if candidate in self.pages:
                return f"[{text}]({self.relative(page, navigation.site_path(candidate))}{anchor or ''})"
        if goal in self.headers:
            return f"[{text}]({self.relative(page, 'api/cpp/' + header_pages.page_of(goal))})"
        if not (self.root / goal).exists():
            return f"[{text}]({path}{anchor or ''})"  # which links.py finds
        # A file of the repository that is no page: the name says where the file is.
        return text if "`" in text or goal in text else f"{text} (`{goal}`)"

    def header(self, page, path):
        if path not in self.headers:
            return f"`{path}`"
        return f"[`{path}`]({self.relative(page, 'api/cpp/' + header_pages.page_of(path))})"

    @staticmethod
    def relative(page, goal):
        return pathlib.PurePath(os.path.relpath(goal, os.path.dirname(navigation.site_path(page)) or ".")).as_posix()
