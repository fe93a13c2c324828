# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The exceptions of gradwire. All derive from RuntimeError, and from torch.distributed's of the same name."""
from __future__ import annotations

import builtins

import torch.distributed as _torch

__all__ = [
    "AbortedError", "DistBackendError", "DistError", "DistNetworkError", "DistStoreError", "EarlyTermination",
    "InternalError", "InvalidArgument", "MismatchError", "PeerError", "QueueEmptyError", "ResourceError",
    "StoreError", "TimeoutError", "UnsupportedError",
]


class DistError(_torch.DistError):
    """The base of them all."""


class DistBackendError(DistError, _torch.DistBackendError):
    """A collective failed. The group is at its end: every later call on it raises the first reason again."""


class DistNetworkError(DistError, _torch.DistNetworkError):
    """The network between ranks failed."""


class DistStoreError(DistError, _torch.DistStoreError):
    """The rendezvous store failed or is gone."""


StoreError = DistStoreError


class QueueEmptyError(DistStoreError, _torch.QueueEmptyError):
    """queue_pop(block=False) found nothing."""


class InvalidArgument(DistError, ValueError):
    """Fix the call; nothing was communicated and nothing changed."""


class UnsupportedError(DistError, NotImplementedError):
    """This backend or group cannot do that; use another."""


class MismatchError(DistBackendError):
    """Ranks called different things; fix the program. The message says who called what."""


class PeerError(DistBackendError):
    """Another rank died, left or failed; restart the job. `peers` says who."""

    peers: list[int] = []


class TimeoutError(DistBackendError, DistStoreError, builtins.TimeoutError):
    """Ranks (or keys of a store) were not there in time. `peers` says which ranks, where that is known."""

    peers: list[int] = []


class AbortedError(DistBackendError):
    """abort() was called on this rank."""


class ResourceError(DistError):
    """The machine refused memory, a descriptor, a thread; nothing was touched."""


class EarlyTermination(DistError):
    """A rank ran out of inputs, and join() was told to raise then. Groups stay usable."""


class InternalError(DistError):
    """A broken invariant: a bug in gradwire; please report it."""
