# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The wheel's requirement: the torch that the wheel is built against. pyproject.toml names this module to scikit-build-core."""
from __future__ import annotations

import importlib.metadata
from typing import Any, Mapping

__all__ = ["dynamic_metadata"]


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    """The project's dependencies. Raises PackageNotFoundError where the environment of the build has no torch."""
    version = importlib.metadata.version("torch").split("+")[0]  # "2.13.0+cpu" and "2.13.0+cu130" have one interface
    return {"dependencies": [f"torch=={version}"]}
