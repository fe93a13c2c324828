#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What bash offers for gradwire-run: every option of --help and no other, values where they are known, and nothing of its own once
the program's name has come. Usage: completion_test.py <gradwire-run> <gradwire-run.bash>"""
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

PROGRAM, COMPLETION = map(os.path.abspath, sys.argv[1:3])


def complete(*words, folder="."):
    """What bash completes the last of `words` to."""
    script = f"""
        source {shlex.quote(COMPLETION)}
        COMP_WORDS=({" ".join(map(shlex.quote, ["gradwire-run", *words]))})
        COMP_CWORD={len(words)}
        "$(complete -p gradwire-run | sed -E 's/.*-F ([^ ]+).*/\\1/')"
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    result = subprocess.run(["bash", "--norc", "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    return set(result.stdout.split("\n")) - {""}


class Completion(unittest.TestCase):
    def test_options_are_those_of_help(self):
        help_text = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout
        options = {name for line in help_text.splitlines() if re.match(r"  -", line)
                   for name in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", line.strip().split("  ")[0])}
        self.assertIn("--max-restarts", options)
        self.assertEqual(complete("-"), options)
        self.assertEqual(complete("--no"), {"--node-rank", "--no-prefix"})

    def test_values(self):
        self.assertEqual(complete("-n", "2", "--color", ""), {"auto", "always", "never"})
        self.assertEqual(complete("--stdin", "r"), {"rank0"})
        self.assertEqual(complete("-n", ""), set())
        self.assertEqual(complete("--timeout", "-"), set())
        os.environ["GALLERY_OF_TESTS"] = "1"
        self.assertEqual(complete("--env", "GALLERY_OF"), {"GALLERY_OF_TESTS="})

    def test_files_and_programs(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "logs"))
            with open(os.path.join(folder, "lonely_train"), "w", encoding="ascii"):
                pass
            self.assertEqual(complete("--log-dir", "lo", folder=folder), {"logs"})
            self.assertEqual(complete("-n", "2", "lonely_tr", folder=folder), {"lonely_train"})
            self.assertIn("bash", complete("-n", "2", "bas"))

    def test_the_arguments_of_the_program_are_its_own(self):
        for words in (["-n", "2", "train", "-"], ["--", "-"], ["--pin", "train", "--color", ""]):
            self.assertEqual(complete(*words), set(), words)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
