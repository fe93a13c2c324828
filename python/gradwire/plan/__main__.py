# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""python -m gradwire.plan, and python3 FOLDER/gradwire/plan, which needs no torch."""

import importlib
import importlib.util
import pathlib
import sys
from importlib.machinery import ModuleSpec

if not __package__:
    # Started by its path: gradwire is only the folder around this one then, so that nothing loads torch.
    spec = ModuleSpec("gradwire", None, is_package=True)
    spec.submodule_search_locations = [str(pathlib.Path(__file__).absolute().parent.parent)]
    sys.modules["gradwire"] = importlib.util.module_from_spec(spec)
    sys.path.pop(0)

sys.exit(importlib.import_module("gradwire.plan.cli").main())
