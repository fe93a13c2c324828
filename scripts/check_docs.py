#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Checks that README.md's C++ example is tests/outside/torch/readme_example.cc (which CI compiles against the installed package
and runs on two ranks), that the relative links of the documentation lead somewhere, and that docs/trace_points.md names the
trace points of the sources. --write copies the example into the README."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "tests" / "outside" / "torch" / "readme_example.cc"
BLOCK = re.compile(r"(```cpp\n)(.*?)(```)", re.DOTALL)
TRACE_POINT = re.compile(r'trace::point\("([^"]+)"')
LINK = re.compile(r"\]\(([^)#:\s]+)(#[^)]*)?\)")


def example_text():
    """The example without its licence header."""
    return "".join(line for line in EXAMPLE.read_text().splitlines(keepends=True) if not line.startswith("// SPDX-"))


def broken_links():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target, _ in LINK.findall(page.read_text()):
            if not (page.parent / target).exists():
                yield f"{page.relative_to(ROOT)}: the link to {target} leads nowhere"


def trace_point_differences():
    emitted = {name for path in (ROOT / "gradwire").rglob("*.cc") if not path.stem.endswith("_test")
               for name in TRACE_POINT.findall(path.read_text())}
    emitted |= {name for path in (ROOT / "gradwire").rglob("*_internal.h") for name in TRACE_POINT.findall(path.read_text())}
    rows = re.findall(r"^\| (`[a-z_.]+`(?:, `[a-z_.]+`)*) \|", (ROOT / "docs" / "trace_points.md").read_text(), re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    for name in sorted(emitted - documented):
        yield f"docs/trace_points.md does not name the trace point {name}"
    for name in sorted(documented - emitted):
        yield f"docs/trace_points.md names {name}, which no source passes"


def main():
    readme = ROOT / "README.md"
    text = readme.read_text()
    block = BLOCK.search(text)
    if block is None:
        sys.exit("README.md: no ```cpp block")
    if "--write" in sys.argv[1:]:
        readme.write_text(text[:block.start(2)] + example_text() + text[block.end(2):])
        return 0
    problems = [*broken_links(), *trace_point_differences()]
    if block.group(2) != example_text():
        problems.append(f"README.md: the example differs from {EXAMPLE.relative_to(ROOT)}; run scripts/check_docs.py --write")
    print("\n".join(problems) if problems else "docs: the example is the file that CI compiles; links and trace points are right")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
