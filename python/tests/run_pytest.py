# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""pytest, with a process that has imported torch and gradwire, and of which tests fork their programs: run_pytest.py [OPTION...] [FILE...]"""
import os
import runpy
import sys

import forks

runpy.run_path(str(forks.STARTUP / "sitecustomize.py"))
# numpy's algebra would start threads as soon as it is imported.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import gradwire  # noqa: E402, F401

del os.environ["OPENBLAS_NUM_THREADS"]
os.environ["PYTHONPATH"] = os.pathsep.join([str(forks.STARTUP), *filter(None, [os.environ.get("PYTHONPATH")])])
program = forks.make_maker()
if program is not None:
    exec(program, sys.modules["__main__"].__dict__)
else:
    import pytest

    try:
        status = pytest.main()
    finally:
        forks.end_maker()
    sys.exit(status)
