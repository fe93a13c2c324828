#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Builds the documentation site in build-docs/site: the repository's pages, and the references of C++ and of Python.

Fails on a public declaration without a comment, on a page that is in no section, and on a link that leads nowhere. Runs with the
Python of .venv-docs (`make docs`). --check-only looks for undocumented declarations and unplaced pages, and builds nothing.
"""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import header_pages  # noqa: E402
import headers  # noqa: E402
import links  # noqa: E402
import navigation  # noqa: E402
import python_pages  # noqa: E402
import repository_pages  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WORK = ROOT / "build-docs"


def torch_folder():
    named = os.environ.get("GRADWIRE_TORCH_DIR")
    if named:
        return named
    for python in (ROOT / ".venv" / "bin" / "python", "python3"):
        try:
            said = subprocess.run([python, "-c", "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"],
                                  capture_output=True, text=True)
        except FileNotFoundError:
            continue
        if said.returncode == 0:
            return said.stdout.strip()
    sys.exit("site: no torch, whose headers the reference needs to read ours: run scripts/setup.sh torch")


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_pages(folder, sections, read_headers, package):
    """All pages, into an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = [navigation.HOME, *(page for _, listed in sections for page in listed)]
    repository = repository_pages.RepositoryPages(ROOT, pages, [header.path for header in read_headers])
    for page in pages:
        write(folder / navigation.site_path(page), repository.text(page))
    for picture in repository.pictures:
        goal = folder / picture.removeprefix("docs/")
        goal.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / picture, goal)
    cpp = header_pages.Pages(read_headers)
    write(folder / "api" / "cpp" / "index.md", cpp.overview())
    for path, text in cpp.all():
        write(folder / "api" / "cpp" / path, text)
    write(folder / "api" / "python" / "index.md", python_pages.overview(package))
    for path, text in python_pages.pages(package):
        write(folder / "api" / "python" / path, text)
    for name in ("gradwire.css", "iframe-worker.js"):
        shutil.copy(ROOT / "scripts" / "site" / name, folder)


def navigation_tree(sections, read_headers, package):
    tree = [{"gradwire": "index.md"}]
    tree += [{title: [navigation.site_path(page) for page in pages]} for title, pages in sections]
    rooms = {}
    for header in read_headers:
        rooms.setdefault(header.room, []).append({header.path.split("/")[-1]: f"api/cpp/{header_pages.page_of(header.path)}"})
    modules = sorted(module.path for module in python_pages.modules(package))
    tree.append({"C++": ["api/cpp/index.md", *({room: pages} for room, pages in rooms.items())]})
    tree.append({"Python": ["api/python/index.md", *module_tree(modules, "")]})
    return tree


def module_tree(modules, package):
    """The pages of the modules of `package`, each with those of its own modules below it."""
    inside = [module for module in modules if module.startswith(package)]
    nearest = [module for module in inside if not any(module.startswith(other + ".") for other in inside)]
    entries = []
    for module in nearest:
        name, page, below = module.removeprefix(package), f"api/python/{module}.md", module_tree(modules, module + ".")
        entries.append({name: [page, *below]} if below else {name: page})
    return entries


def build(sections, read_headers, package):
    """Runs mkdocs. Returns what it complained about."""
    write_pages(WORK / "pages", sections, read_headers, package)
    config = {"INHERIT": "../scripts/site/mkdocs.yml", "docs_dir": "pages", "site_dir": "site",
              "nav": navigation_tree(sections, read_headers, package)}
    write(WORK / "mkdocs.yml", yaml.safe_dump(config, sort_keys=False))
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--quiet", "--clean", "-f", str(WORK / "mkdocs.yml")],
                          capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if line.startswith(("WARNING", "ERROR"))]
    if done.returncode != 0 and not complaints:
        complaints = [done.stderr]
    return complaints


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check-only", action="store_true")
    arguments = parser.parse_args()
    sections, problems = navigation.sections(ROOT)
    read_headers = headers.read(torch_folder())
    package = python_pages.load()
    problems += [*headers.undocumented(read_headers), *python_pages.undocumented(package)]
    if not arguments.check_only:
        problems += build(sections, read_headers, package)
        problems += links.dead_links(WORK / "site")
    if problems:
        print("\n".join(problems))
        print(f"site: {len(problems)} problems")
        return 1
    declarations = sum(len(group.declarations) for header in read_headers for group in header.groups)
    print(f"site: {len(read_headers)} headers with {declarations} declarations; nothing undocumented"
          + ("" if arguments.check_only else f"; no dead link; {WORK / 'site' / 'index.html'}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
