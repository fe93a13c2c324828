# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The groups of this process: which there are, and which ranks they have."""
from __future__ import annotations

import os
import sys
import threading
import warnings
import weakref
from datetime import timedelta
from typing import Any, NamedTuple, Sequence, cast

import torch

from gradwire import _C
from gradwire._C import ProcessGroup, Store
from gradwire._errors import InvalidArgument
from gradwire.distributed.rendezvous import _has_handler, rendezvous

default_pg_timeout: timedelta = _C.DEFAULT_TIMEOUT
"""The deadline of calls and of the rendezvous where the program names none."""

# Ranks (of the default group) by group, in the order of the group's own ranks. Of those that this process is in.
_ranks: dict[ProcessGroup, list[int]] = {}
# The default group that each of the others was made in: ranks as threads each have one.
_worlds: dict[ProcessGroup, ProcessGroup] = {}
# Ranks (of the default group) of the groups that ProcessGroup.split() and dup() made, which belong to their users, and of
# those that hooks get.
_parts: weakref.WeakKeyDictionary[ProcessGroup, list[int]] = weakref.WeakKeyDictionary()


def _note_ranks(parent: ProcessGroup, made: ProcessGroup, ranks: list[int]) -> None:
    """`made` has these ranks of `parent`. ProcessGroup.split() and dup() call this."""
    origin = get_process_group_ranks(parent)
    _parts[made] = [origin[rank] for rank in ranks]


def _note_duplicate(made: ProcessGroup) -> None:
    """`made` has the ranks of the group that it stands for in the hook that runs. GradBucket.group calls this."""
    if made in _ranks or made in _parts:
        return
    for known in [*_ranks, *_parts]:
        if _C.stands_for(made, known):
            _parts[made] = get_process_group_ranks(known)
            return


class _GroupMeta(type):
    # As in PyTorch, None before init_process_group().
    @property
    def WORLD(cls) -> ProcessGroup | None:
        return _C.default_group() if _C.is_initialized() else None


class group(metaclass=_GroupMeta):
    """`group.WORLD` is the default group, None before init_process_group()."""


class GroupMember(metaclass=_GroupMeta):
    """WORLD is the default group; NON_GROUP_MEMBER is what new_group() returns on ranks that are not in it."""

    # As in PyTorch a number; typed as what a call with `group=` takes, so that programs need not ask at each call.
    NON_GROUP_MEMBER: ProcessGroup = cast(ProcessGroup, -100)


def is_available() -> bool:
    """Whether gradwire's distributed part is built in: always True; PyTorch programs ask."""
    return bool(_C.is_available())


def is_initialized() -> bool:
    """Whether there is a default group. In a forked child (a worker of a DataLoader): whether its parent had one.

    So `get_rank() if is_initialized() else 0` is the parent's number there. What communicates raises InvalidArgument
    there; the child may make a default group of its own, after destroy_process_group() or without it.
    """
    return bool(_C.is_initialized()) or _inherited_place() is not None


def _cuda_device(device: Any) -> int:
    parsed = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if parsed.type != "cuda" or parsed.index is None:
        raise InvalidArgument(
            f"init_process_group: device_id takes a CUDA device and its number, not {device}; leave it None for the CPU."
        )
    return int(parsed.index)


def _met_by_handler(url: str, rank: int, world_size: int, timeout: timedelta) -> tuple[Store, int, int]:
    if _C.is_initialized():
        raise InvalidArgument("init_process_group: the default group is initialised already; call destroy_process_group() first")
    met = next(rendezvous(url, rank, world_size, timeout=timeout), None)
    if met is None or met[0] is None or met[1] < 0 or met[2] < 1:
        raise InvalidArgument(f"init_process_group: the handler of {url} yielded {met}, and no store, rank and world size.")
    return met


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Store | None = None,
    group_name: str = "",
    pg_options: Any = None,
    device_id: Any = None,
) -> None:
    """Makes the default group of this process; blocks until all ranks are there.

    backend: "auto" (the default), "shm", "threads", or any name in `gradwire.distributed.backend_names()`, in small or
        capital letters.
    init_method: "env://" (the default: gradwire-run, torchrun, mpirun, srun, or RANK, WORLD_SIZE, MASTER_ADDR and
        MASTER_PORT by hand), "file:///path", "tcp://host:port", or one of register_rendezvous_handler().
    timeout: of the rendezvous and of the group's calls; 30 minutes.
    store: instead of init_method; needs rank and world_size.
    device_id: the CUDA device of this rank's tensors, a torch.device, its name or its number; "auto" is "nccl" then.
        "nccl" without it takes LOCAL_RANK's.

    Raises InvalidArgument (a ValueError), TimeoutError that names the missing ranks, MismatchError, PeerError,
    StoreError. PyTorch's pg_options have no meaning here and are refused.
    """
    if pg_options is not None:
        raise InvalidArgument("init_process_group: pg_options belong to PyTorch's backends; gradwire's have none.")
    if store is not None and init_method is not None:
        raise InvalidArgument("init_process_group: give store or init_method, not both.")
    if store is not None and (rank < 0 or world_size < 1):
        raise InvalidArgument("init_process_group: with store, rank and world_size are needed.")
    if isinstance(init_method, str) and _has_handler(init_method):
        store, rank, world_size = _met_by_handler(init_method, rank, world_size, timeout or default_pg_timeout)
    if threading.current_thread() is threading.main_thread():
        _C.watch_signals()
    _C.init_process_group(
        (backend or "auto").lower(),
        init_method or "env://",
        store,
        rank,
        world_size,
        timeout or default_pg_timeout,
        group_name,
        None if device_id is None else _cuda_device(device_id),
    )
    world = _C.default_group()
    _ranks[world] = list(range(world.size()))
    _note_place(_Place(os.getpid(), world.rank(), world.size()), world.name() == "threads")


class _NothingToDestroy(InvalidArgument, AssertionError):
    """What destroy_process_group() raises without a default group: programs catch PyTorch's AssertionError there."""


def destroy_process_group(group: ProcessGroup | int | None = None) -> None:
    """Ends `group`, or, for None or the default group, the default group and all that new_group() made.

    Waits for what is under way. init_process_group() works again afterwards. Raises InvalidArgument, here also an
    AssertionError as in PyTorch, where there is no default group. In a forked child the parent's default group is
    forgotten, and nothing changes in the parent.
    """
    if not _is_member(group) or isinstance(group, int):  # the second for mypy
        return
    if not is_initialized():
        raise _NothingToDestroy("destroy_process_group: there is no default group; call init_process_group() first.")
    if _inherited_place() is not None:
        if group is None or (group in _ranks and group not in _worlds):  # the default one
            _note_place(None, is_thread=True)
            _note_place(None, is_thread=False)
        return
    world = _C.default_group()
    if group is None or group is world:
        _note_place(None, world.name() == "threads")
        ended = [known for known, origin in _worlds.items() if origin is world] + [world]
    else:
        ended = [group]
    try:
        _C.destroy_process_group(None if world in ended else group)
    finally:  # also after Ctrl-C
        for known in ended:
            _ranks.pop(known, None)
            _worlds.pop(known, None)


def _get_default_group() -> ProcessGroup:
    if not _C.is_initialized():
        if (inherited := _inherited_place()) is not None:
            raise InvalidArgument(
                f"this process is a forked child of rank {inherited.rank} (a worker of a DataLoader, perhaps), and a child has no "
                "part in its parent's groups; communicate in the parent. get_rank() and get_world_size() tell of the parent."
            )
        raise InvalidArgument("there is no default group; call init_process_group() first.")
    return _C.default_group()


def _get_default_store() -> Store:
    """A store that all ranks of the default group reach, for keys of the program's own."""
    _get_default_group()  # whose error says more
    return _C.default_store()


class _Place(NamedTuple):
    process: int
    rank: int
    size: int


class _Places(threading.local):
    """Of ranks that are threads, each has its own; a forked child has that of the thread that forked it."""

    mine: _Place | None = None
    of_process: _Place | None = None  # of all threads: set on the class


def _note_place(place: _Place | None, is_thread: bool) -> None:
    if is_thread:
        _places.mine = place
    else:
        _Places.of_process = place


_places = _Places()


def _inherited_place() -> _Place | None:
    """The place in the default group of the rank that forked this process, which has no default group of its own."""
    place = _places.mine or _Places.of_process
    return None if place is None or place.process == os.getpid() or _C.is_initialized() else place


def _resolve(group: ProcessGroup | None) -> ProcessGroup:
    """The group that a call means: None is the default one."""
    if group is None:
        return _get_default_group()
    if not _is_member(group):
        raise InvalidArgument("this rank is not part of the group.")
    return group


def _is_member(group: ProcessGroup | int | None) -> bool:
    """False for GroupMember.NON_GROUP_MEMBER; raises TypeError for what is no group."""
    if isinstance(group, ProcessGroup) or group is None:
        return True
    if isinstance(group, int) and group == cast(int, GroupMember.NON_GROUP_MEMBER):
        return False
    raise TypeError(f"a gradwire ProcessGroup was expected, not {type(group).__name__}; from_c10d() adapts PyTorch's.")


def _takes_part(group: ProcessGroup | int | None) -> bool:
    """As _is_member(), for a communication, which the caller leaves out then: a warning says so, as PyTorch's does."""
    if _is_member(group):
        return True
    warnings.warn(
        f"{sys._getframe(1).f_code.co_name} does nothing on rank {get_rank() if is_initialized() else -1}, which is not part of the group.",
        stacklevel=3,
    )
    return False


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: Any = None,
    sort_ranks: bool = True,
) -> ProcessGroup:
    """A group of some ranks of the default group; GroupMember.NON_GROUP_MEMBER on ranks that are not part of it.

    Collective over the default group: every rank calls it, in the same order and with the same ranks (None: all).
    use_local_synchronization: collective over `ranks` alone; the others need not call it. A rank that died is noticed
    by the timeout only then. sort_ranks False keeps the order of `ranks`.
    """
    if pg_options is not None or device_id is not None:
        raise InvalidArgument("new_group: pg_options and device_id belong to PyTorch's backends.")
    world = _get_default_group()
    chosen = list(range(world.size())) if ranks is None else [int(rank) for rank in ranks]
    if not chosen:
        raise InvalidArgument("new_group: the list of ranks is empty; give None for all ranks.")
    if sort_ranks:
        chosen.sort()
    make = _C.new_group_among if use_local_synchronization else _C.new_group
    made = make(chosen, (backend or "").lower(), group_desc or "", timeout or timedelta(0))
    if made is None:
        return GroupMember.NON_GROUP_MEMBER
    _ranks[made] = chosen
    _worlds[made] = world
    return made


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[ProcessGroup, list[ProcessGroup]]:
    """Several groups at once; returns this rank's own and all of them. Collective over the default group."""
    return _subgroups(ranks_per_subgroup_list, timeout, backend, pg_options, group_desc, among_themselves=False)


def _subgroups(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: timedelta | None,
    backend: str | None,
    pg_options: Any,
    group_desc: str | None,
    among_themselves: bool,
) -> tuple[ProcessGroup, list[ProcessGroup]]:
    """As new_subgroups_by_enumeration(). among_themselves: collective over the ranks of each group alone."""
    if not ranks_per_subgroup_list:
        raise InvalidArgument("new_subgroups_by_enumeration: ranks_per_subgroup_list is empty; give one list at least.")
    seen: set[int] = set()
    for ranks in ranks_per_subgroup_list:
        for rank in ranks:
            if rank in seen:
                raise InvalidArgument(f"new_subgroups_by_enumeration: rank {rank} is in two groups.")
            seen.add(rank)
    mine = GroupMember.NON_GROUP_MEMBER
    made = []
    for ranks in ranks_per_subgroup_list:
        made.append(new_group(ranks, timeout, backend, pg_options, among_themselves, group_desc))
        if get_rank() in ranks:
            mine = made[-1]
    return mine, made


def new_subgroups(
    group_size: int | None = None,
    group: ProcessGroup | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[ProcessGroup, list[ProcessGroup]]:
    """Groups of `group_size` consecutive ranks of `group` each; returns this rank's own and all of them.

    Collective over `group`.
    """
    if group_size is None:
        group_size = int(os.environ.get("LOCAL_WORLD_SIZE", get_world_size()))
    ranks = get_process_group_ranks(group)
    if group_size < 1 or len(ranks) % group_size != 0:
        raise InvalidArgument(f"new_subgroups: {len(ranks)} ranks do not fall into groups of {group_size}.")
    lists = [ranks[start : start + group_size] for start in range(0, len(ranks), group_size)]
    return _subgroups(lists, timeout, backend, pg_options, group_desc, len(ranks) < get_world_size())


def split_group(
    parent_pg: ProcessGroup | None = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: timedelta | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> ProcessGroup | None:
    """The group of `split_ranks` (lists of the parent's ranks) that this rank is in, else None; collective there.

    It has the parent's backend: `backend` may say so.
    """
    if pg_options is not None:
        raise InvalidArgument("split_group: pg_options belong to PyTorch's backends.")
    if backend is not None and backend.lower() != get_backend(parent_pg):
        raise InvalidArgument(f"split_group: a part of a group has its backend; use new_group() for {backend!r}.")
    if not split_ranks:
        raise InvalidArgument("split_group: split_ranks is empty.")
    parent = _resolve(parent_pg)
    own = parent.rank()
    color, key = -1, 0
    for number, ranks in enumerate(split_ranks):
        if own in ranks:
            color, key = number, sorted(ranks).index(own)
    made = parent.split(color, key, group_desc)
    if made is None:
        return None
    if timeout is not None:
        made.timeout = timeout
    world_ranks = get_process_group_ranks(parent)
    _ranks[made] = [world_ranks[rank] for rank in sorted(split_ranks[color])]
    _worlds[made] = _get_default_group() if _C.is_initialized() else parent
    return made


def get_rank(group: ProcessGroup | None = None) -> int:
    """This process's number in `group` (None: the default group), -1 when it is not in it.

    In a forked child without a default group of its own (a worker of a DataLoader): its parent's number.
    """
    if group is None and (inherited := _inherited_place()) is not None:
        return inherited.rank
    return _resolve(group).rank() if _is_member(group) else -1


def get_world_size(group: ProcessGroup | None = None) -> int:
    """How many ranks `group` has, -1 when this process is not in it. In a forked child as get_rank()."""
    if group is None and (inherited := _inherited_place()) is not None:
        return inherited.size
    return _resolve(group).size() if _is_member(group) else -1


def get_backend(group: ProcessGroup | None = None) -> str:
    """The name of the backend of `group`."""
    return str(_resolve(group).name())


def get_process_group_ranks(group: ProcessGroup | None) -> list[int]:
    """The numbers in the default group of the ranks of `group`, in its order."""
    resolved = _resolve(group)
    return list(_ranks.get(resolved) or _parts.get(resolved) or range(resolved.size()))


def get_global_rank(group: ProcessGroup | None, group_rank: int) -> int:
    """The number in the default group of rank `group_rank` of `group`."""
    ranks = get_process_group_ranks(group)
    if not 0 <= group_rank < len(ranks):
        raise InvalidArgument(f"rank {group_rank} is not in a group of {len(ranks)} ranks.")
    return ranks[group_rank]


def get_group_rank(group: ProcessGroup | None, global_rank: int) -> int:
    """The number in `group` of rank `global_rank` of the default group."""
    ranks = get_process_group_ranks(group)
    if global_rank not in ranks:
        raise InvalidArgument(f"global rank {global_rank} is not in the group, which has the ranks {ranks}.")
    return ranks.index(global_rank)


def get_pg_count() -> int:
    """How many groups this process is in."""
    return len(_ranks)


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """This process's number among those of its host, from LOCAL_RANK."""
    if "LOCAL_RANK" in os.environ:
        return int(os.environ["LOCAL_RANK"])
    if fallback_rank is not None:
        return int(fallback_rank)
    raise InvalidArgument("get_node_local_rank: LOCAL_RANK is not set; start with gradwire-run or torchrun.")


def is_torchelastic_launched() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ
