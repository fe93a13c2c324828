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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, help="the build folder")
    parser.add_argument("--label", action="append", default=[], help="only tests with this ctest label (all of them, if several)")
    parser.add_argument("--without-label", action="append", default=[], help="no tests with this ctest label")
    parser.add_argument("--regex", help="only tests whose name matches")
    # Tests wait for deadlines and for each other's ranks much of the time. Those with several processes count twice.
    parser.add_argument("--jobs", type=int, default=3 * (os.cpu_count() or 1), help="tests at a time (default: three a processor)")
    parser.add_argument("--allowed", type=pathlib.Path, default=ROOT / "tests" / "allowed_skips.txt")
    parser.add_argument("--check-allowed", action="store_true", help="fail when a pattern of the list names no test")
    options = parser.parse_args()

    build = options.build.resolve()
    allowed = read_allowed(options.allowed)
    selection = []
    for label in options.label:
        selection += ["-L", f"^{label}$"]
    if options.without_label:
        selection += ["-LE", "|".join(f"^{label}$" for label in options.without_label)]
    if options.regex:
        selection += ["-R", options.regex]

    tests = ctest_tests(build, selection)
    if not tests:
        sys.exit(f"run_tests: no test in {build} fits {' '.join(selection) or 'the selection'}")
    results = build / "test-results"
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir()
    programs = {test["name"]: pathlib.Path(test["command"][0]).name for test in tests if test.get("command")}

    started = time.monotonic()
    junit = results / "ctest.junit"
    status = subprocess.run(
        ["ctest", "--test-dir", str(build), "--output-on-failure", "--no-tests=error", "-j", str(options.jobs),
         "--output-junit", str(junit), *selection],
        env={**os.environ, "GTEST_OUTPUT": f"xml:{results}{os.sep}", "GTEST_COLOR": "no"}, check=False).returncode
    seconds = time.monotonic() - started

    cases = list(gtest_cases(results, {*programs, *programs.values()}))
    counts = {state: sum(case[2] == state for case in cases) for state in ("passed", "failed", "skipped", "disabled")}
    # What follows adds programs that are no GoogleTest, and programs that died before they could report.
    reported = {case[0] for case in cases}
    skips = [(program, name, reason) for program, name, state, _, reason in cases if state in ("skipped", "disabled")]
    programs_failed = []
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        names = {case.get("name"), programs.get(case.get("name"))}
        if case.get("status") == "fail":
            programs_failed.append(case.get("name"))
            if not any(c[0] in names and c[2] == "failed" for c in cases):
                counts["failed"] += 1
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            message = case.find("skipped")
            skips.append(("ctest", case.get("name"), (message.get("message") if message is not None else "") or "did not run"))
            counts["skipped"] += 1
        elif not names & reported:
            counts["passed"] += 1

    problems = []
    if counts["passed"] + counts["failed"] == 0:
        problems.append("no test ran")
    if programs_failed:
        problems.append("failed: " + ", ".join(sorted(programs_failed)))
    elif status != 0:
        problems.append(f"ctest ended with status {status}")
    if skips:
        print(f"\nSkipped ({len(skips)}):")
    for program, name, reason in skips:
        full = f"{program}.{name}"
        why = next((why for pattern, (why, _) in allowed.items() if fnmatch.fnmatchcase(full, pattern)), None)
        print(f"  {full}: {reason}" + (f" [allowed: {why}]" if why else " [NOT ALLOWED]"))
        if why is None:
            problems.append(f"skipped, but not in {options.allowed.name}: {full} ({reason})")
    if options.check_allowed:
        known = {f"{program}.{name}" for program, name, *_ in cases} | {f"ctest.{test['name']}" for test in tests}
        stale = [pattern for pattern, (_, file) in allowed.items()
                 if (build / file).exists() and not fnmatch.filter(known, pattern)]
        if stale:
            for test in ctest_tests(build, []):
                if test.get("command"):
                    program = pathlib.Path(test["command"][0])
                    known.add(f"ctest.{test['name']}")
                    if test["name"] not in reported and program.is_relative_to(build):
                        known.update(listed_cases(test["command"], test["name"]))
        for pattern in stale:
            if not fnmatch.filter(known, pattern):
                problems.append(f"{options.allowed.name} names a test that does not exist: {pattern}")

    slowest = sorted(cases, key=lambda case: -case[3])[:5]
    print(f"\nSlowest: " + ", ".join(f"{program}.{name} {took:.1f} s" for program, name, _, took, _ in slowest))
    for problem in problems:
        print(f"run_tests: {problem}")
    print(f"{len(tests)} test programs in {seconds:.0f} s: {counts['passed']} passed, {counts['failed']} failed, "
          f"{counts['skipped'] + counts['disabled']} skipped")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
