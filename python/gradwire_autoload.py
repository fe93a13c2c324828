# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The backend "gradwire" of torch.distributed, without `import gradwire`: torch calls register() at the end of its import.

The package's metadata name register() as an entry point of the group `torch.backends`, so each `import torch` of an
environment with gradwire runs it. It imports nothing of gradwire: the runtime is loaded when the first group is made.
TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns entry points off; `import gradwire` calls register(), too.
"""
from __future__ import annotations

from typing import Any

__all__ = ["register"]


def _create(options: Any, backend_options: Any) -> Any:
    """What torch.distributed calls for each group. Raises ImportError where the runtime cannot be loaded."""
    from gradwire import _c10d

    return _c10d.create(options, backend_options)


def register() -> None:
    """Makes torch.distributed.init_process_group("gradwire") known to torch; once."""
    from torch import distributed

    if distributed.is_available() and not hasattr(distributed.Backend, "GRADWIRE"):
        distributed.Backend.register_backend("gradwire", _create, extended_api=True, devices=["cpu"])
