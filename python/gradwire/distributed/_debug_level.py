# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's levels of what is logged."""
from __future__ import annotations

import enum
import os

from gradwire import _C
from gradwire._errors import InvalidArgument


class DebugLevel(enum.IntEnum):
    """How much gradwire writes to stderr, under PyTorch's names: nothing, what groups are made of, or each call as well.

    INFO is GRADWIRE_LOG=info, and DETAIL is GRADWIRE_LOG=debug. The levels `warn` and `error` of GRADWIRE_LOG are OFF.
    """

    OFF = 0
    INFO = 1
    DETAIL = 2


def get_debug_level() -> DebugLevel:
    """How much gradwire logs now."""
    return DebugLevel(_C.debug_level())


def set_debug_level(level: DebugLevel) -> None:
    """Makes gradwire log that much from now on, on this rank."""
    _C.set_debug_level(int(DebugLevel(level)))


def set_debug_level_from_env() -> None:
    """Takes the level from TORCH_DISTRIBUTED_DEBUG (OFF, INFO, DETAIL), as PyTorch does; without the variable, OFF.

    When gradwire is imported, the level is GRADWIRE_LOG's. Raises InvalidArgument for another word.
    """
    word = os.environ.get("TORCH_DISTRIBUTED_DEBUG", "OFF").upper()
    if word not in DebugLevel.__members__:
        raise InvalidArgument(f"TORCH_DISTRIBUTED_DEBUG={word}: it takes {', '.join(DebugLevel.__members__)}.")
    set_debug_level(DebugLevel[word])
