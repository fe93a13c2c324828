#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Checks every source of a build folder by itself, with the compiler of that folder, and generates no code.

The default build compiles sources in batches, where a source can use what another one included. This check finds the include
that is missing; with Clang it also finds what the thread annotations forbid.

--part I/N checks every N-th source, beginning with the I-th, and besides those that the last commits changed: a rule that a batch hides is broken
where a source is edited, or, seldom, in a source whose header is.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMITS = 20


def check(entry):
    """(file, what was wrong) of one compile command; nothing where all is well."""
    arguments = shlex.split(entry["command"])
    if arguments[0].endswith("ccache"):
        del arguments[0]
    del arguments[arguments.index("-o"):arguments.index("-o") + 2]
    result = subprocess.run([*arguments, "-fsyntax-only"], cwd=entry["directory"], capture_output=True, text=True, check=False)
    failed = f"{entry['file']}: the compiler ended with status {result.returncode}\n" if result.returncode else ""
    return entry["file"], result.stderr + failed


def part_of(text):
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise argparse.ArgumentTypeError(f"{text} is no part: it takes I/N with 0 <= I < N")
    return int(index), int(count)


def changed_sources():
    """The files that the last commits changed; none where the folder is no clone."""
    log = subprocess.run(["git", "log", f"-{COMMITS}", "--format=", "--name-only"], cwd=ROOT, capture_output=True, text=True, check=False)
    return {str(ROOT / name) for name in log.stdout.splitlines() if name}


def chosen(entries, part):
    index, count = part
    changed = changed_sources()
    ordered = sorted(entries, key=lambda entry: entry["file"])
    return [entry for place, entry in enumerate(ordered) if place % count == index or entry["file"] in changed]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, help="a configured build folder without batches and precompiled headers")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilations at a time (default: one a processor)")
    parser.add_argument("--part", type=part_of, default=(0, 1), metavar="I/N", help="only this part of the sources, and what changed lately")
    options = parser.parse_args()
    entries = json.loads((options.build / "compile_commands.json").read_text())
    if batches := [entry["file"] for entry in entries if "/Unity/" in entry["file"]]:
        sys.exit(f"check_sources: {options.build} compiles in batches ({batches[0]}); configure it with -DGRADWIRE_UNITY=OFF")
    entries = chosen(entries, options.part)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        said = {file: words for file, words in pool.map(check, entries) if words}
    for words in said.values():
        print(words)
    print(f"{len(entries)} sources checked, {len(said)} failed")
    return 1 if said or not entries else 0


if __name__ == "__main__":
    sys.exit(main())
