# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Where each page of the repository stands in the site. A page that is not here fails the build, and so does a name without a page.

A path that ends in "?" may be missing. "folder/*" takes the folder's other pages, by name.
"""

HOME = "README.md"

SECTIONS = [
    ("Start", [
        "docs/guides/install.md", "docs/guides/start_cpp.md", "docs/guides/start_python.md", "docs/guides/from_pytorch.md",
        "docs/guides/core_without_torch.md",
        "docs/data.md?", "docs/checkpoints.md?", "examples/README.md?", "examples/char_lm/README.md", "docs/what_works.md",
        "docs/comparisons.md",
    ]),
    ("Guides", [
        "docs/guides/choosing_a_hook.md", "docs/guides/several_hosts.md", "docs/guides/when_something_hangs.md", "docs/questions.md",
        "docs/diagnose.md?",
        "docs/elastic.md?", "docs/clients.md?", "docs/guides/*",
    ]),
    ("Extend", [
        "docs/guides/write_a_hook.md", "docs/guides/write_a_codec.md", "docs/guides/write_a_collective.md",
        "docs/guides/write_a_backend.md", "docs/guides/write_an_optimizer.md", "docs/testing.md",
    ]),
    ("In detail", [
        "docs/ddp.md", "docs/hooks.md", "docs/optim.md", "docs/python.md", "docs/backends.md", "docs/devices.md", "docs/clusters.md", "docs/launcher.md",
        "docs/errors.md", "docs/recorder.md", "docs/report.md", "docs/plan.md", "docs/performance.md",
    ]),
    ("Inside", [
        "docs/architecture.md", "docs/algorithms.md", "docs/trace_points.md", "docs/format/README.md?", "docs/format/*",
        "docs/decisions/README.md", "docs/decisions/*", "CONTRIBUTING.md", "CHANGELOG.md",
    ]),
]


def is_page(path):
    """Whether a Markdown file is part of the site."""
    return path.parts[0] == "docs" or path.as_posix() in {"CONTRIBUTING.md", "CHANGELOG.md", "README.md"} or (
        path.parts[0] == "examples" and path.name == "README.md")


def site_path(path):
    """Where a page of the repository lies in the site."""
    if path == HOME:
        return "index.md"
    if path.startswith("examples/"):
        return path.removesuffix("/README.md").replace("/", "_") + ".md"
    return path.removeprefix("docs/").replace("README.md", "overview.md").replace("CONTRIBUTING", "contributing").replace("CHANGELOG", "changelog")


def sections(root):
    """(title, pages) of each section, and what is wrong with the list above."""
    present = {path.relative_to(root).as_posix() for folder in ("docs", "examples") for path in (root / folder).rglob("*.md")}
    present |= {"CONTRIBUTING.md", "CHANGELOG.md"}
    present = {path for path in present if is_page(type(root)(path))}
    named = {entry.rstrip("?") for _, entries in SECTIONS for entry in entries}
    problems = [f"scripts/site/navigation.py names {entry}, which is not there"
                for _, entries in SECTIONS for entry in entries if entry[-1] not in "?*" and entry not in present]
    found, left = [], present - named
    for title, entries in SECTIONS:
        pages = []
        for entry in entries:
            if entry.endswith("/*"):
                taken = sorted(path for path in left if path.rpartition("/")[0] == entry[:-2])
                pages += taken
                left -= set(taken)
            elif entry.rstrip("?") in present:
                pages.append(entry.rstrip("?"))
        found.append((title, pages))
    problems += [f"{path} is in no section of scripts/site/navigation.py" for path in sorted(left)]
    return found, problems
