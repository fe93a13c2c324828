#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What the site's checks find, and what they let pass. `make docs` runs this first, with the Python of .venv-docs."""
import pathlib
import sys
import tempfile
import textwrap
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import griffe  # noqa: E402
import header_pages  # noqa: E402
import headers  # noqa: E402
import links  # noqa: E402
import navigation  # noqa: E402
import python_pages  # noqa: E402
import repository_pages  # noqa: E402


class Folder(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name).resolve()

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))


class Headers(Folder):
    def read(self, text):
        """The header `text`, without torch."""
        self.write("gradwire/room/one.h", "// SPDX\n// About the file.\n#pragma once\n#include <cstddef>\n" + textwrap.dedent(text))
        with mock.patch.object(headers, "ROOT", self.root), \
                mock.patch.object(headers, "installed_headers", lambda: ["gradwire/room/one.h"]):
            return headers.read(self.root)

    def missing(self, text):
        return [line.split(": ")[1].split(" has ")[0] for line in headers.undocumented(self.read(text))]

    def test_declarations_without_a_comment_are_found(self):
        self.assertEqual(self.missing("""
            namespace gradwire {
            // Said.
            int said();

            int unsaid();

            struct Options {
              int first = 0;   // said
              int second = 0;

              int third = 0;
            };
            // A class.
            class Thing {
             public:
              // Said.
              void said();

              void unsaid_method();

             private:
              void hidden();
            };
            namespace internal {
            int not_public();
            }
            }
            """), ["unsaid", "Options", "third", "unsaid_method"])

    def test_a_comment_counts_for_the_declarations_right_below(self):
        self.assertEqual(self.missing("""
            namespace gradwire {
            // Both.
            int one();
            inline int two() {
              return 2;
            }
            int three();

            int four();
            }
            """), ["four"])

    def test_a_comment_above_an_empty_line_counts_for_what_follows(self):
        self.assertEqual(self.missing("""
            namespace gradwire {
            // All of these.

            int one();

            struct Two {
              int any;

              int name;
            };
            }
            """), [])

    def test_what_says_itself_what_it_does_needs_no_comment(self):
        self.assertEqual(self.missing("""
            namespace gradwire {
            // A base. run() runs.
            class Base {
             public:
              virtual ~Base() = default;

              Base(const Base&) = delete;

              virtual void run();
            };
            // Derived.
            class Derived final : public Base {
             public:
              void run() override;
            };
            }
            """), [])

    def test_pages_hold_every_declaration_with_its_comment(self):
        read = self.read("""
            namespace gradwire {
            // Adds. See ThingOptions.
            int add(int left, int right);
            // Options of a thing.
            struct ThingOptions {
              int width = 3;  // in columns
            };
            }
            """)
        (path, page), = header_pages.Pages(read).all()
        self.assertEqual(path, "room/one.md")
        for text in ("About the file.", "int add(int left, int right);", "Adds. See [ThingOptions](#thingoptions).", "## add {#add}",
                     "## struct ThingOptions {#thingoptions}", "int width = 3;  // in columns"):
            self.assertIn(text, page)

    def test_an_error_in_a_header_ends_the_build(self):
        with self.assertRaises(SystemExit):
            self.read("namespace gradwire { unknown_type value(); }\n")


class Python(Folder):
    def package(self, text):
        self.write("gradwire/__init__.py", text)
        return griffe.load("gradwire", search_paths=[str(self.root)], allow_inspection=False)

    def test_names_without_a_docstring_are_found(self):
        package = self.package('''
            """A module."""
            __all__ = ["said", "unsaid", "Thing", "again"]
            def said(): """Says."""
            def unsaid(): pass
            again = said
            class Thing:
                """A thing. named() is named here."""
                def named(self): pass
                def unsaid_method(self): pass
                def _hidden(self): pass
            ''')
        self.assertEqual([line.split(":")[0] for line in python_pages.undocumented(package)],
                         ["gradwire.unsaid", "gradwire.Thing.unsaid_method"])

    def test_pages_hold_signatures_and_docstrings(self):
        package = self.package('''
            """A module."""
            __all__ = ["add"]
            def add(left: int, *, right: int = 2) -> int:
                """Adds."""
            ''')
        page = dict(python_pages.pages(package))["gradwire.md"]
        self.assertIn("add(left: int, *, right: int = 2) -> int", page)
        self.assertIn("Adds.", page)


class Links(Folder):
    def dead(self, **pages):
        for name, text in pages.items():
            self.write(f"{name}.html", text)
        return list(links.dead_links(self.root))

    def test_links_that_lead_nowhere_are_found(self):
        self.assertEqual(self.dead(a='<a href="b.html"></a><a href="c.html"></a><img src="no.svg">', b=""),
                         ["a.html: c.html leads nowhere", "a.html: no.svg leads nowhere"])

    def test_anchors_that_are_not_there_are_found(self):
        self.assertEqual(self.dead(a='<a href="b.html#yes"></a><a href="b.html#no"></a><a href="#own"></a><p id="own">',
                                   b='<h2 id="yes">'), ["a.html: b.html#no: the page has no such anchor"])

    def test_links_to_other_servers_are_left_alone(self):
        self.assertEqual(self.dead(a='<a href="https://example.org/x"></a><a href="mailto:a@example.org"></a>'), [])


class Navigation(Folder):
    def setUp(self):
        super().setUp()
        for path in ("docs/one.md", "docs/guides/two.md", "docs/guides/later.md", "docs/stray.md"):
            self.write(path, "")
        sections = [("Start", ["docs/one.md", "docs/missing.md?", "docs/gone.md"]), ("Guides", ["docs/guides/two.md", "docs/guides/*"]),
                    ("Inside", ["CONTRIBUTING.md", "CHANGELOG.md"])]
        self.patch = mock.patch.object(navigation, "SECTIONS", sections)
        self.patch.start()
        self.addCleanup(self.patch.stop)

    def test_pages_that_are_in_no_section_are_found(self):
        found, problems = navigation.sections(self.root)
        self.assertEqual(found[0], ("Start", ["docs/one.md"]))
        self.assertEqual(found[1], ("Guides", ["docs/guides/two.md", "docs/guides/later.md"]))
        self.assertEqual(problems, ["scripts/site/navigation.py names docs/gone.md, which is not there",
                                    "docs/stray.md is in no section of scripts/site/navigation.py"])


class RepositoryPages(Folder):
    def text(self, page, text, *pages):
        self.write(page, text)
        return repository_pages.RepositoryPages(self.root, [page, *pages], ["gradwire/room/one.h"]).text(page)

    def test_a_link_to_nothing_stays_a_link(self):
        self.assertEqual(self.text("docs/a.md", "[b](no.md#x)"), "[b](no.md#x)")

    def test_links_lead_to_pages_of_the_site(self):
        self.write("scripts/run.py", "")
        text = self.text("docs/a.md", "[b](guides/b.md#x), [home](../README.md), [code](../scripts/run.py), `gradwire/room/one.h`",
                         "docs/guides/b.md", "README.md")
        self.assertEqual(text, "[b](guides/b.md#x), [home](index.md), code (`scripts/run.py`), [`gradwire/room/one.h`](api/cpp/room/one.md)")

    def test_blocks_stay_as_they_are_and_markers_go(self):
        text = self.text("docs/a.md", "<!-- run -->\n```sh\n[b](b.md) `gradwire/room/one.h`\n```\n")
        self.assertEqual(text, "```sh\n[b](b.md) `gradwire/room/one.h`\n```\n")


if __name__ == "__main__":
    unittest.main()
