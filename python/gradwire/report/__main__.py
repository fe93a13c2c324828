# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""python -m gradwire.report FILE... -o PAGE"""

import importlib
import pathlib
import sys

if not __package__:
    # Started from the sources, as `python3 python/gradwire/report`: without gradwire itself, which needs torch.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parent.parent)

sys.exit(importlib.import_module(".cli", __package__ or "report").main())
