#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Tests of scripts/run_tests.py: what makes it fail, and how it counts. Each case is a build folder with hand-made tests."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

RUNNER = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "run_tests.py"
PASSED = '<testcase name="{}" status="run" result="completed" time="0.1" classname="Suite"/>'
SKIPPED = ('<testcase name="{}" status="run" result="skipped" time="0" classname="Suite">'
           '<skipped message="a_test.cc:1&#x0A;no such machine"/></testcase>')
DISABLED = '<testcase name="{}" status="notrun" result="suppressed" time="0" classname="Suite"/>'
FAILED = '<testcase name="{}" status="run" result="completed" time="0" classname="Suite"><failure message="no"/></testcase>'


class RunTests(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name)
        self.testfile = ""

    def add(self, name, cases=(), status=0, label="fast"):
        """A program that reports `cases` as GoogleTest does, and exits with `status`."""
        script = self.build / f"{name}.sh"
        report = "".join(cases)
        write = f"""cat > "${{GTEST_OUTPUT#xml:}}{name}.xml" <<'XML'\n<testsuites>{report}</testsuites>\nXML\n""" if cases else ""
        script.write_text(f"{write}exit {status}\n")
        self.testfile += f'add_test({name} "/bin/sh" "{script}")\nset_tests_properties({name} PROPERTIES LABELS "{label}")\n'

    def run_tests(self, *arguments, allowed=""):
        (self.build / "CTestTestfile.cmake").write_text(self.testfile)
        allowed_file = self.build / "allowed.txt"
        allowed_file.write_text(allowed)
        result = subprocess.run([sys.executable, str(RUNNER), str(self.build), "--allowed", str(allowed_file), *arguments],
                                capture_output=True, text=True, timeout=120, check=False)
        return result.returncode, result.stdout + result.stderr

    def test_counts_cases_of_programs_and_programs_without_cases(self):
        self.add("a_test", [PASSED.format("one"), PASSED.format("two")])
        self.add("plain")
        status, output = self.run_tests()
        self.assertEqual(status, 0, output)
        self.assertIn("3 passed, 0 failed, 0 skipped", output)

    def test_a_failed_case_fails_and_is_counted_once(self):
        self.add("a_test", [PASSED.format("one"), FAILED.format("two")], status=1)
        status, output = self.run_tests()
        self.assertEqual(status, 1)
        self.assertIn("1 passed, 1 failed", output)

    def test_a_program_that_dies_before_it_reports_fails(self):
        self.add("a_test", [PASSED.format("one")])
        self.add("dies", status=134)
        status, output = self.run_tests()
        self.assertEqual(status, 1)
        self.assertIn("1 passed, 1 failed", output)

    def test_a_skip_that_is_not_on_the_list_fails_and_its_reason_is_printed(self):
        self.add("a_test", [PASSED.format("one"), SKIPPED.format("two")])
        status, output = self.run_tests()
        self.assertEqual(status, 1)
        self.assertIn("a_test.Suite.two: no such machine [NOT ALLOWED]", output)

    def test_a_skip_on_the_list_is_fine(self):
        self.add("a_test", [PASSED.format("one"), SKIPPED.format("two")])
        status, output = self.run_tests(allowed="a_test.Suite.t* | only on that machine\n")
        self.assertEqual(status, 0, output)
        self.assertIn("[allowed: only on that machine]", output)

    def test_a_disabled_case_counts_as_skipped(self):
        self.add("a_test", [PASSED.format("one"), DISABLED.format("DISABLED_two")])
        status, output = self.run_tests()
        self.assertEqual(status, 1)
        self.assertIn("NOT ALLOWED", output)

    def test_no_test_is_a_failure(self):
        self.add("a_test", [PASSED.format("one")])
        status, _ = self.run_tests("--label", "no-such-label")
        self.assertNotEqual(status, 0)

    def test_a_pattern_that_names_no_test_fails_where_asked(self):
        self.add("a_test", [PASSED.format("one")])
        allowed = "gone_test.* | it went\n"
        self.assertEqual(self.run_tests(allowed=allowed)[0], 0)
        status, output = self.run_tests("--check-allowed", allowed=allowed)
        self.assertEqual(status, 1)
        self.assertIn("names a test that does not exist: gone_test.*", output)

    def test_a_pattern_of_tests_that_are_built_with_something_else_may_name_none_without_it(self):
        self.add("a_test", [PASSED.format("one")])
        allowed = "engine_test.* | needs an engine | lib/libengine.so\n"
        self.assertEqual(self.run_tests("--check-allowed", allowed=allowed)[0], 0)
        (self.build / "lib").mkdir()
        (self.build / "lib" / "libengine.so").touch()
        status, output = self.run_tests("--check-allowed", allowed=allowed)
        self.assertEqual(status, 1)
        self.assertIn("names a test that does not exist: engine_test.*", output)

    def test_a_line_without_a_reason_is_refused(self):
        self.add("a_test", [PASSED.format("one")])
        status, output = self.run_tests(allowed="a_test.Suite.two\n")
        self.assertNotEqual(status, 0)
        self.assertIn("expected `pattern | reason`", output)

    def test_labels_choose(self):
        self.add("a_test", [PASSED.format("one")])
        self.add("b_test", [PASSED.format("one"), PASSED.format("two")], label="slow")
        self.assertIn("1 passed", self.run_tests("--without-label", "slow")[1])
        self.assertIn("2 passed", self.run_tests("--label", "slow")[1])


if __name__ == "__main__":
    unittest.main()
