#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of a build folder through ctest and says what ran, what was skipped and why.

Fails when a test fails, when no test ran, when a test was skipped or is disabled without being named in
tests/allowed_skips.txt, and (--check-allowed, for builds that hold every test) when that list names a test that no longer exists.
"""
import argparse
import fnmatch
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent


def read_allowed(path):
    """Lines `pattern | reason` or `pattern | reason | file`; by pattern, the reason and the file.

    The pattern is a shell pattern over test.Suite.Case. The file, in the build folder, is what the tests are built with.
    """
    allowed = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        pattern, reason, file, *more = [part.strip() for part in line.split("|")] + ["", ""]
        if not reason or any(more):
            sys.exit(f"{path}:{number}: expected `pattern | reason` or `pattern | reason | file`, found: {line}")
        allowed[pattern] = (reason, file)
    return allowed


def ctest_tests(build, selection):
    output = subprocess.run(["ctest", "--test-dir", str(build), "--show-only=json-v1", *selection],
                            check=True, capture_output=True, text=True).stdout
    return json.loads(output)["tests"]


def gtest_cases(folder, names):
    """(test, case, state, seconds, reason) for every case that a GoogleTest program or pytest reported.

    gradwire_test() has a program write test-results/<name of the ctest test>.xml; a program that was registered by hand
    writes <program>.xml, or <program>_1.xml where that exists.
    """
    for path in sorted(folder.glob("*.xml")):
        try:
            root = ElementTree.parse(path).getroot()
        except ElementTree.ParseError:
            continue  # the program died while writing; ctest reports that
        program = path.stem
        if program not in names and program.rpartition("_")[0] in names:
            program = program.rpartition("_")[0]
        for case in root.iter("testcase"):
            name = f"{case.get('classname')}.{case.get('name')}"
            skipped = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                yield program, name, "failed", float(case.get("time", 0)), ""
            elif case.get("result") == "suppressed":
                yield program, name, "disabled", 0.0, "disabled in the source"
            elif skipped is not None or case.get("result") == "skipped":
                message = "" if skipped is None else skipped.get("message") or skipped.text or ""
                # The message opens with the file and line of the GTEST_SKIP.
                reason = " ".join(message.strip().splitlines()[1:]) or message.strip() or "no reason given"
                yield program, name, "skipped", float(case.get("time", 0)), reason
            elif case.get("status", "run") == "run":  # pytest's files have no status
                yield program, name, "passed", float(case.get("time", 0)), ""


def listed_cases(command, name):
    """The cases of a test that did not run, for the check of stale patterns."""
    result = subprocess.run([*command, "--gtest_list_tests"], capture_output=True, text=True, timeout=120, check=False)
    suite = ""
    for line in result.stdout.splitlines():
        if line and not line.startswith(" "):
            suite = line.split("#")[0].strip().rstrip(".")
        elif line.strip():
            yield f"{name}.{suite}.{line.split('#')[0].strip()}"


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, help="the build folder")
    parser.add_argument("--label", action="append", default=[], help="only tests with this ctest label (all of them, if several)")
    parser.add_argument("--without-label", action="append", default=[], help="no tests with this ctest label")
    parser.add_argument("--regex", help="only tests whose name matches")
    # Tests wait for deadlines and for each other's ranks much of the time. Those with several processes count twice.
    parser.add_argument("--jobs", type=int, default=3 * (os.cpu_count() or 1), help="tests at a time (default: three a processor)")
    parser.add_argument("--allowed", type=pathlib.Path, default=ROOT / "tests" / "allowed_skips.txt")
    parser.add_argument("--check-allowed", action="store_true", help="fail when a pattern of the list names no test")
    return parser.parse_args()


def ctest_selection(options):
    """ctest's own options for the tests that the options choose."""
    selection = []
    for label in options.label:
        selection += ["-L", f"^{label}$"]
    if options.without_label:
        selection += ["-LE", "|".join(f"^{label}$" for label in options.without_label)]
    if options.regex:
        selection += ["-R", options.regex]
    return selection


def run_ctest(build, results, selection, jobs):
    """Runs the tests; the status of ctest, the seconds they took, and ctest's own report of each."""
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir()
    started = time.monotonic()
    junit = results / "ctest.junit"
    status = subprocess.run(
        ["ctest", "--test-dir", str(build), "--output-on-failure", "--no-tests=error", "-j", str(jobs),
         "--output-junit", str(junit), *selection],
        env={**os.environ, "GTEST_OUTPUT": f"xml:{results}{os.sep}", "GTEST_COLOR": "no"}, check=False).returncode
    return status, time.monotonic() - started, list(ElementTree.parse(junit).getroot().iter("testcase"))


class Tally:
    """What became of the cases: how many of each state, which were skipped, and which programs failed."""

    def __init__(self, cases):
        self.cases = cases
        self.reported = {program for program, *_ in cases}
        self.counts = {state: sum(case[2] == state for case in cases) for state in ("passed", "failed", "skipped", "disabled")}
        self.skips = [(program, name, reason) for program, name, state, _, reason in cases if state in ("skipped", "disabled")]
        self.programs_failed = []

    def add_program(self, report, program):
        """Adds what only ctest knows of a test: a program that is no GoogleTest, or that died before it could report."""
        name = report.get("name")
        names = {name, program}
        skipped = report.find("skipped")
        if report.get("status") == "fail":
            self.programs_failed.append(name)
            if not any(case[0] in names and case[2] == "failed" for case in self.cases):
                self.counts["failed"] += 1
        elif skipped is not None or report.get("status") in ("notrun", "disabled"):
            self.skips.append(("ctest", name, (skipped.get("message") if skipped is not None else "") or "did not run"))
            self.counts["skipped"] += 1
        elif not names & self.reported:
            self.counts["passed"] += 1

    def problems(self, status):
        if self.counts["passed"] + self.counts["failed"] == 0:
            yield "no test ran"
        if self.programs_failed:
            yield "failed: " + ", ".join(sorted(self.programs_failed))
        elif status != 0:
            yield f"ctest ended with status {status}"


def print_skips(skips, allowed, list_name):
    """Prints each skip and why it is allowed; the problems, one for each that is not."""
    if skips:
        print(f"\nSkipped ({len(skips)}):")
    problems = []
    for program, name, reason in skips:
        full = f"{program}.{name}"
        why = next((why for pattern, (why, _) in allowed.items() if fnmatch.fnmatchcase(full, pattern)), None)
        print(f"  {full}: {reason}" + (f" [allowed: {why}]" if why else " [NOT ALLOWED]"))
        if why is None:
            problems.append(f"skipped, but not in {list_name}: {full} ({reason})")
    return problems


def stale_patterns(allowed, build, tests, tally):
    """The patterns of the list that name no test of this build. Only a pattern that no case fits makes programs list theirs."""
    known = {f"{program}.{name}" for program, name, *_ in tally.cases} | {f"ctest.{test['name']}" for test in tests}
    stale = [pattern for pattern, (_, file) in allowed.items()
             if (build / file).exists() and not fnmatch.filter(known, pattern)]
    if not stale:
        return []
    for test in ctest_tests(build, []):
        if test.get("command"):
            known.add(f"ctest.{test['name']}")
            if test["name"] not in tally.reported and pathlib.Path(test["command"][0]).is_relative_to(build):
                known.update(listed_cases(test["command"], test["name"]))
    return [pattern for pattern in stale if not fnmatch.filter(known, pattern)]


def print_summary(tally, problems, tests, seconds):
    slowest = sorted(tally.cases, key=lambda case: -case[3])[:5]
    print("\nSlowest: " + ", ".join(f"{program}.{name} {took:.1f} s" for program, name, _, took, _ in slowest))
    for problem in problems:
        print(f"run_tests: {problem}")
    counts = tally.counts
    print(f"{len(tests)} test programs in {seconds:.0f} s: {counts['passed']} passed, {counts['failed']} failed, "
          f"{counts['skipped'] + counts['disabled']} skipped")


def main():
    options = parse_options()
    build = options.build.resolve()
    allowed = read_allowed(options.allowed)
    selection = ctest_selection(options)
    tests = ctest_tests(build, selection)
    if not tests:
        sys.exit(f"run_tests: no test in {build} fits {' '.join(selection) or 'the selection'}")

    results = build / "test-results"
    status, seconds, reports = run_ctest(build, results, selection, options.jobs)
    programs = {test["name"]: pathlib.Path(test["command"][0]).name for test in tests if test.get("command")}
    tally = Tally(list(gtest_cases(results, {*programs, *programs.values()})))
    for report in reports:
        tally.add_program(report, programs.get(report.get("name")))

    problems = [*tally.problems(status), *print_skips(tally.skips, allowed, options.allowed.name)]
    if options.check_allowed:
        problems += [f"{options.allowed.name} names a test that does not exist: {pattern}"
                     for pattern in stale_patterns(allowed, build, tests, tally)]
    print_summary(tally, problems, tests, seconds)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
