# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What goes around training."""
from gradwire.utils import data

__all__ = ["data"]
