# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Modules."""
from gradwire.nn import parallel

__all__ = ["parallel"]
