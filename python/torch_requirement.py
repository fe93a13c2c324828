# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The wheel's requirement: the torch that the wheel is built against. pyproject.toml names this module to scikit-build-core."""
from __future__ import annotations

import importlib.metadata
from typing import Any

__all__ = ["dynamic_metadata"]


def dynamic_metadata(field: str, settings: dict[str, Any] | None = None) -> list[str]:
    """The list of dependencies. Raises PackageNotFoundError where the environment of the build has no torch."""
    if field != "dependencies" or settings:
        raise ValueError(f"torch_requirement: only `dependencies`, without settings, not {field} with {settings}")
    version = importlib.metadata.version("torch").split("+")[0]  # "2.13.0+cpu" and "2.13.0+cu130" have one interface
    return [f"torch=={version}"]
