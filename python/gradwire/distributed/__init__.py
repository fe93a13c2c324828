# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The names of torch.distributed over gradwire's runtime."""
from gradwire._C import (
    FileStore,
    GradBucket,
    HashStore,
    TCPStore,
    _create_work_from_future as _create_work_from_future,
    make_process_group,
)
from gradwire import _errors
from gradwire._errors import *  # noqa: F403
from gradwire.distributed import distributed_c10d
from gradwire.distributed.distributed_c10d import *  # noqa: F403
from gradwire.distributed._collectives import (
    _all_gather_base as _all_gather_base,
    _reduce_scatter_base as _reduce_scatter_base,
)
from gradwire.distributed._groups import _get_default_group as _get_default_group
from gradwire.distributed.rendezvous import register_rendezvous_handler, rendezvous
from gradwire.distributed import algorithms, nn, optim

_Work = Work

__all__ = [
    "FileStore", "GradBucket", "HashStore", "TCPStore", "algorithms", "distributed_c10d", "make_process_group",
    "nn", "optim", "register_rendezvous_handler", "rendezvous",
]
__all__ += _errors.__all__
__all__ += distributed_c10d.__all__
