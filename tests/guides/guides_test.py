#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands and programs of the guides (docs/guides/*.md) as a reader would, and compares what they print.

A comment above a fenced block says what the block is:

    <!-- file: NAME -->   a file; the test writes it
    <!-- run -->          commands for sh; the test runs them, and a command that fails fails the test
    <!-- prints -->       lines that the commands above print, in any order; a line may be a part of what is printed

Each page has an empty folder of its own. gradwire is installed into a prefix for the C++ programs; Python sees the package of the
build folder. The environment: GRADWIRE_BUILD, the build folder; GRADWIRE_PYTHON, the Python of that package.
"""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("GRADWIRE_BUILD", ROOT / "build"))
PYTHON = pathlib.Path(os.environ.get("GRADWIRE_PYTHON", ROOT / ".venv" / "bin" / "python"))
MARKER = re.compile(r"^<!-- (run|prints|file: (?P<name>\S+)) -->$")
PAGES_AT_ONCE = 2
SECONDS = 240  # of one block; only ends what hangs


class BadPage(Exception):
    pass


def blocks(text):
    """(marker, name of the file or None, content, line) of each marked block of a page."""
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        marker = MARKER.match(line)
        if not marker:
            if line.startswith("<!-- ") and re.match(r"<!-- (run|prints|file)", line):
                raise BadPage(f"line {number}: {line} is no marker")
            continue
        if number >= len(lines) or not lines[number].startswith("```"):
            raise BadPage(f"line {number}: no fenced block below {line}")
        end = next((at for at in range(number + 1, len(lines)) if lines[at] == "```"), None)
        if end is None:
            raise BadPage(f"line {number}: the block has no end")
        yield marker.group(1).split(":")[0], marker["name"], "\n".join(lines[number + 1:end]) + "\n", number


def check_printed(expected, printed, where):
    missing = [line for line in expected.strip().split("\n") if line.strip() not in printed]
    assert not missing, f"{where}: not printed: {missing}\nwhat was printed:\n{printed}"


def run_page(page, folder, environment):
    """Raises an AssertionError where a command fails, or prints something else than the page says. Returns the number of blocks."""
    printed, count = "", 0
    for kind, name, content, line in blocks(page.read_text()):
        count += 1
        if kind == "file":
            (folder / name).write_text(content)
        elif kind == "run":
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", content], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS)
            printed = done.stdout
            assert done.returncode == 0, f"{page.name}:{line}: exit code {done.returncode}\n{printed}"
        else:
            check_printed(content, printed, f"{page.name}:{line}")
    return count


def environment_for(prefix):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GRADWIRE_", "MASTER_"))}
    if shutil.which("ccache"):
        environment |= {"CMAKE_CXX_COMPILER_LAUNCHER": "ccache", "CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1",
                        "CCACHE_SLOPPINESS": "include_file_mtime,include_file_ctime"}
    return {**environment, "CMAKE_PREFIX_PATH": str(prefix), "PYTHONPATH": str(BUILD / "python"), "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1", "CXXFLAGS": "-O0",
            "PATH": os.pathsep.join([str(prefix / "bin"), str(PYTHON.parent), os.environ["PATH"]])}


class Guides(unittest.TestCase):
    def test_every_guide(self):
        pages = sorted((ROOT / "docs" / "guides").glob("*.md"))
        self.assertGreater(len(pages), 5)
        # The same folder each time, so that ccache has what an earlier run compiled.
        scratch = BUILD / "guides"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        self.addCleanup(shutil.rmtree, scratch)
        subprocess.run(["cmake", "--install", str(BUILD), "--prefix", str(scratch / "prefix")], check=True, stdout=subprocess.DEVNULL)
        environment = environment_for(scratch / "prefix")

        def run(page):
            folder = scratch / page.stem
            folder.mkdir()
            return run_page(page, folder, environment)

        # Pages side by side: some compile, others wait.
        with concurrent.futures.ThreadPoolExecutor(PAGES_AT_ONCE) as pool:
            running = {page.name: pool.submit(run, page) for page in pages}
        counts = {}
        for name, result in running.items():
            with self.subTest(page=name):
                counts[name] = result.result()
        print(counts)
        self.assertGreater(sum(counts.values()), 20, "the markers are gone")


class Extraction(unittest.TestCase):
    """What the test above relies on."""

    def page(self, text):
        file = pathlib.Path(self.folder.name) / "page.md"
        file.write_text(text)
        return file

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def run_text(self, text):
        return run_page(self.page(text), pathlib.Path(self.folder.name), dict(os.environ))

    def test_files_are_there_for_commands(self):
        text = "<!-- file: a.txt -->\n```\nhello\n```\n\n<!-- run -->\n```sh\ncat a.txt\n```\n<!-- prints -->\n```\nhell\n```\n"
        self.assertEqual(self.run_text(text), 3)

    def test_a_command_that_fails_fails_the_page(self):
        with self.assertRaisesRegex(AssertionError, "page.md:1: exit code 3"):
            self.run_text("<!-- run -->\n```sh\n(exit 3)\necho on\n```\n")

    def test_other_output_fails_the_page(self):
        with self.assertRaisesRegex(AssertionError, "not printed: .'no'."):
            self.run_text("<!-- run -->\n```sh\necho yes\n```\n<!-- prints -->\n```\nyes\nno\n```\n")

    def test_a_marker_without_a_block_is_an_error(self):
        for text in ("<!-- run -->\n\n```sh\ntrue\n```\n", "<!-- file -->\n```\n```\n", "<!-- run -->\n```sh\ntrue\n"):
            with self.assertRaises(BadPage):
                self.run_text(text)

    def test_blocks_without_a_marker_are_left_alone(self):
        self.assertEqual(self.run_text("```sh\nexit 3\n```\n"), 0)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
