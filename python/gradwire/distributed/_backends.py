# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The names of backends, and which of them this gradwire was built with."""
from __future__ import annotations

from datetime import timedelta
from typing import Callable

import torch

from gradwire import _C
from gradwire._C import ProcessGroup, Store
from gradwire._errors import InvalidArgument


def backend_names() -> list[str]:
    """The names of backends that init_process_group() knows, whether this gradwire was built with them or not."""
    return list(_C.backend_names())


def is_backend_available(backend: str) -> bool:
    """Whether this gradwire was built with that backend; the machine may lack what it needs all the same.

    `python -m gradwire` prints what the machine can use.
    """
    return bool(_C.is_backend_built(backend.lower()))


class Backend(str):
    """The name of a backend, in small letters: Backend("GLOO") == "gloo". Plain strings do as well.

    Raises ValueError for what backend_names() does not have; "auto" chooses. UCC and XCCL are names for programs that
    compare with them: gradwire has no such backends. register_backend() adds one.
    """

    UNDEFINED = "undefined"
    AUTO = "auto"
    GLOO = "gloo"
    MPI = "mpi"
    NCCL = "nccl"
    SHM = "shm"
    THREADS = "threads"
    UCC = "ucc"
    UCX = "ucx"
    XCCL = "xccl"

    def __new__(cls, name: str) -> Backend:
        if not isinstance(name, str):
            raise ValueError(f"the name of a backend is a str, not {name!r}.")
        known = name.lower()
        if known not in (cls.AUTO, cls.UNDEFINED, *backend_names()):
            raise ValueError(f"there is no backend {name!r}; there are auto, {', '.join(backend_names())}.")
        return super().__new__(cls, known)

    @classmethod
    def register_backend(
        cls,
        name: str,
        func: Callable[[Store, int, int, timedelta], ProcessGroup],
        extended_api: bool = False,
        devices: str | list[str] | None = None,
    ) -> None:
        """Makes `name` a backend of init_process_group(), new_group() and make_process_group(), on this rank.

        func(store, rank, world_size, timeout) returns the group of this rank, of a class that derives from
        ProcessGroup. The keys of `store` are that group's alone. A name that was registered before gets the new
        function. The attribute `Backend.NAME` is the name. devices makes no difference: the group's supports() says
        which tensors the group takes. extended_api must be False.

        Raises InvalidArgument for an empty name and for the name of a backend of gradwire's.
        """
        if extended_api:
            raise InvalidArgument(
                "register_backend: gradwire calls func(store, rank, world_size, timeout); leave extended_api False."
            )

        def make(store: Store, rank: int, size: int, timeout: timedelta) -> ProcessGroup:
            made = func(store, rank, size, timeout)
            if not isinstance(made, ProcessGroup):
                raise TypeError(f"the backend {name!r} made a {type(made).__name__}, not a gradwire ProcessGroup.")
            return made

        _C.register_backend(name.lower(), make)
        setattr(cls, name.upper(), name.lower())


def is_gloo_available() -> bool:
    """Whether this gradwire was built with the backend "gloo"."""
    return is_backend_available("gloo")


def is_mpi_available() -> bool:
    """Whether this gradwire was built with the backend "mpi"; the machine may lack MPI all the same."""
    return is_backend_available("mpi")


def is_nccl_available() -> bool:
    """Whether this gradwire was built with the backend "nccl", for a torch with CUDA; the machine may lack a GPU."""
    return is_backend_available("nccl")


def is_ucc_available() -> bool:
    """False: gradwire has no such backend."""
    return is_backend_available("ucc")


def is_xccl_available() -> bool:
    """False: gradwire has no such backend."""
    return is_backend_available("xccl")


def get_default_backend_for_device(device: str | torch.device) -> str:
    """"auto", which chooses by the rank's device when the group is made."""
    kind = torch.device(device).type
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"get_default_backend_for_device: no backend takes tensors on {kind!r}.")
    return "auto"
