# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Loads the C++ runtime beside the torch that it was built for."""
import threading

import gradwire_autoload
import torch

from gradwire import _build

if torch.__version__.split("+")[0] != _build.TORCH_VERSION:
    raise ImportError(
        f"gradwire was built for torch {_build.TORCH_VERSION}, but torch {torch.__version__} is installed in "
        f"{torch.__path__[0]}. Their binary interfaces differ: install torch=={_build.TORCH_VERSION}, or build gradwire "
        "again against this torch (pip install --no-build-isolation . in its sources)."
    )

from gradwire import _C, _end as _end, _pickling, distributed, elastic, hooks, nn, observe, utils  # noqa: E402  (_C needs torch's libraries loaded, and checked)
from gradwire._c10d import from_c10d, to_c10d  # noqa: E402

__version__ = _build.VERSION
__all__ = ["__version__", "distributed", "elastic", "from_c10d", "hooks", "nn", "observe", "to_c10d", "utils"]

if threading.current_thread() is threading.main_thread():
    _C.watch_signals()
_pickling.register()
gradwire_autoload.register()
