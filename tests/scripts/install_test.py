#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The target gradwire_installed builds every file that `cmake --install` takes from the build folder, and compiles no test.

Usage: install_test.py <build folder> <ninja>. Nothing is built: the files are in CMake's install scripts, and what builds them is in
ninja's graph."""
import pathlib
import re
import subprocess
import sys
import unittest

BUILD, NINJA = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]


def ninja(*words):
    return subprocess.run([NINJA, "-C", BUILD, "-t", *words], capture_output=True, text=True, check=True).stdout.splitlines()


def installed_files():
    """The files of the build folder that the install scripts name, relative to that folder."""
    scripts = [BUILD / "cmake_install.cmake", *BUILD.glob("*/**/cmake_install.cmake")]
    text = "".join(re.sub(r'DESTINATION "[^"]*"', "", script.read_text()) for script in scripts)
    return {name for name in re.findall(rf'"{re.escape(str(BUILD))}/([^"]+)"', text) if not name.endswith(".cmake")}


class Installed(unittest.TestCase):
    def setUp(self):
        self.words = {word for command in ninja("commands", "gradwire_installed") for word in command.split()}

    def test_all_that_is_installed_is_built(self):
        made_by_ninja = {line.rsplit(": ", 1)[0] for line in ninja("targets", "all")}
        installed = installed_files() & made_by_ninja
        self.assertIn("bin/gradwire-run", installed)
        self.assertEqual(installed - self.words, set())

    def test_no_test_is_built(self):
        self.assertEqual([word for word in self.words if "bin/tests/" in word or re.search(r"_test\b|gtest", word)], [])


if __name__ == "__main__":
    sys.exit(unittest.main(argv=sys.argv[:1], verbosity=2))
