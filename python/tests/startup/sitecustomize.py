# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""For the Python processes of tests: the garbage collector rests during `import torch`, and leaves alone what that has made.

A third of the processor time of the import is collections that find nothing. What is frozen is not written to by later
collections, so a fork shares it with its parent.
"""
import gc
import importlib.machinery
import importlib.util
import os
import sys


class AroundTorch:
    """Finds torch where it lies on the path of modules."""

    def find_spec(self, name, path, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if name == "torch" else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_without_collections(module):
            sys.meta_path.remove(self)
            gc.disable()
            try:
                execute(module)
            finally:
                gc.enable()
            gc.freeze()

        spec.loader.exec_module = execute_without_collections
        return spec


def run_the_hidden_one():
    """The machine or an environment may have a sitecustomize.py of its own."""
    here = os.path.dirname(__file__)
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", [path for path in sys.path if path != here])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


sys.meta_path.insert(0, AroundTorch())
if __name__ == "sitecustomize":
    run_the_hidden_one()
