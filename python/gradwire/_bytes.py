# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""States as bytes, as they travel between ranks and into archives."""
from __future__ import annotations

import io
from typing import Any

import torch

__all__ = ["bytes_of", "value_of"]


def bytes_of(value: Any) -> bytes:
    """What value_of() reads: tensors, numbers, strings, and lists and dicts of them."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def value_of(state: bytes) -> Any:
    """The value that bytes_of() wrote."""
    return torch.load(io.BytesIO(state), weights_only=True)
