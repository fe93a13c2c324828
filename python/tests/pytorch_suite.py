# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of torch.distributed, which its wheel carries, over a backend that takes Gloo's place in them.

    python pytorch_suite.py [--backend gradwire] [--list] [test_name ...]

Without names: every test. Each runs on two fresh processes, forked from this one, which has imported what they need.
The last line is JSON: {"passed": [...], "skipped": {name: why}, "failed": {name: traceback}}. Exit status 0: none failed.
"""
from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import json
import multiprocessing
import os
import pathlib
import sys
import tempfile
import types
import unittest

SUITE = "torch.testing._internal.distributed.distributed_test"
RANKS = 2


class Renaming(importlib.machinery.SourceFileLoader):
    """Loads the suite with `backend` wherever it names Gloo, and so into its tables of what a backend can do."""

    def __init__(self, name: str, path: str, backend: str) -> None:
        super().__init__(name, path)
        self._quoted = json.dumps(backend)

    def get_code(self, fullname: str) -> types.CodeType:  # not from the cache, which knows the plain text alone
        text = self.get_source(fullname)
        assert text is not None
        for gloo in (json.dumps("gloo"), "dist.Backend.GLOO"):
            text = text.replace(gloo, self._quoted)
        return compile(text, self.path, "exec", dont_inherit=True)


def load(backend: str, folder: pathlib.Path) -> types.ModuleType:
    """The suite's module for `backend`; `folder` is where its processes meet."""
    for inner in ("barrier", "init_dir", "test_dir"):
        (folder / inner).mkdir()
    os.environ.update(BACKEND=backend, WORLD_SIZE=str(RANKS), TEMP_DIR=str(folder), INIT_METHOD=f"file://{folder}/meet")
    if backend != "gloo":
        import gradwire  # noqa: F401, PLC0415

    from torch.testing._internal.common_distributed import DistTestCases  # noqa: PLC0415

    for able in DistTestCases.backend_feature.values():
        if "gloo" in able:
            able.add(backend)
    found = importlib.util.find_spec(SUITE)
    assert found is not None and found.origin is not None
    spec = importlib.util.spec_from_loader(SUITE, Renaming(SUITE, found.origin, backend))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[SUITE] = module  # where its classes are found again when they are unpickled
    spec.loader.exec_module(module)
    return module


def case_of(module: types.ModuleType) -> type[unittest.TestCase]:
    class Suite(module.TestDistBackend, module.DistributedTest._DistTestBase):  # type: ignore[name-defined, misc]
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(multiprocessing.get_context("fork").Process)

    return Suite


class Result(unittest.TestResult):
    def __init__(self) -> None:
        super().__init__()
        self.passed: list[str] = []

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        print(test._testMethodName, "...", flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self.passed.append(test._testMethodName)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--backend", default="gradwire")
    arguments.add_argument("--list", action="store_true", help="only name the tests")
    arguments.add_argument("names", nargs="*")
    options = arguments.parse_args()
    sys.argv[1:] = []  # the suite's own imports read it
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder  # the suite leaves files behind
        suite = case_of(load(options.backend, pathlib.Path(folder)))
        names = options.names or unittest.defaultTestLoader.getTestCaseNames(suite)
        if options.list:
            print(*names, sep="\n")
            return 0
        result = Result()
        unittest.TestSuite(suite(name) for name in names).run(result)
    failed = {test._testMethodName: text for test, text in result.failures + result.errors}
    skipped = {test._testMethodName: why for test, why in result.skipped}
    print(json.dumps({"passed": result.passed, "skipped": skipped, "failed": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
