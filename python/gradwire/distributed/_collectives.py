# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Collectives and point-to-point messages over tensors, with the signatures of torch.distributed.

`group` None is the default group. Ranks (`src`, `dst`) are those of the default group; `group_src`, `group_dst` are the
group's own. On ranks that are not in the group a call warns, and does nothing. With `async_op` a call returns a Work at once;
without, it returns when it has ended. Tensors are dense and of one dtype and number of elements on all ranks; outputs
are written in place. Errors: see gradwire.distributed.DistError and its kin.
"""
from __future__ import annotations

from datetime import timedelta
from typing import Any, Callable, Sequence

from torch import Tensor
from torch.futures import Future

from gradwire import _C
from gradwire._C import ProcessGroup, ReduceOp, Work
from gradwire._errors import InvalidArgument
from gradwire.distributed._groups import _resolve, _takes_part, get_global_rank, get_group_rank

Group = ProcessGroup | None


def _finish(work: Work, async_op: bool) -> Work | None:
    if async_op:
        return work
    work.wait()
    return None


def _options(kind: Callable[[], Any], async_op: bool, **fields: Any) -> Any:
    options = kind()
    options.asyncOp = async_op
    for name, value in fields.items():
        try:
            setattr(options, name, value)
        except TypeError:
            if name != "reduceOp":
                raise
            raise TypeError(f"op: a gradwire.distributed.ReduceOp was expected (ReduceOp.SUM), not {value!r}.") from None
    return options


def _tensor(value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"a torch.Tensor was expected, not {type(value).__name__}.")
    return value


def _rank_in(group: Group, rank: int | None, group_rank: int | None, what: str, default: int | None = None) -> int:
    """The group's own number of the rank that a call names one way or the other; `default` is such a number."""
    if rank is not None and group_rank is not None:
        raise InvalidArgument(f"give {what} or group_{what}, not both.")
    if group_rank is not None:
        return int(group_rank)
    if rank is None:
        if default is None:
            raise InvalidArgument(f"give {what} or group_{what}.")
        return default
    return int(rank) if group is None else get_group_rank(group, rank)


def all_reduce(
    tensor: Tensor, op: ReduceOp = ReduceOp.SUM, group: Group = None, async_op: bool = False
) -> Work | None:
    """The reduction of all ranks' tensors, in place, bit for bit the same on every rank."""
    if not _takes_part(group):
        return None
    options = _options(_C.AllreduceOptions, async_op, reduceOp=op)
    return _finish(_resolve(group).allreduce([_tensor(tensor)], options), async_op)


def all_reduce_coalesced(
    tensors: Sequence[Tensor], op: ReduceOp = ReduceOp.SUM, group: Group = None, async_op: bool = False
) -> Future[list[Tensor]] | None:
    """all_reduce of several tensors of one dtype at once. With `async_op` a Future, as in PyTorch."""
    if not _takes_part(group):
        return None
    options = _options(_C.AllreduceOptions, async_op, reduceOp=op)
    work = _finish(_resolve(group).allreduce_coalesced(list(tensors), options), async_op)
    return None if work is None else work.get_future()


def broadcast(
    tensor: Tensor, src: int | None = None, group: Group = None, async_op: bool = False, group_src: int | None = None
) -> Work | None:
    """The tensor of rank `src` on every rank, in place."""
    if not _takes_part(group):
        return None
    options = _options(_C.BroadcastOptions, async_op, rootRank=_rank_in(group, src, group_src, "src"))
    return _finish(_resolve(group).broadcast([_tensor(tensor)], options), async_op)


def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: ReduceOp = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """The reduction on rank `dst`; what the other ranks' tensors hold afterwards is not defined."""
    if not _takes_part(group):
        return None
    options = _options(_C.ReduceOptions, async_op, reduceOp=op, rootRank=_rank_in(group, dst, group_dst, "dst"))
    return _finish(_resolve(group).reduce([_tensor(tensor)], options), async_op)


def all_gather(
    tensor_list: list[Tensor], tensor: Tensor, group: Group = None, async_op: bool = False
) -> Work | None:
    """All ranks' tensors, in rank order, into the tensors of `tensor_list`, one a rank."""
    if not _takes_part(group):
        return None
    options = _options(_C.AllgatherOptions, async_op)
    return _finish(_resolve(group).allgather([tensor_list], [_tensor(tensor)], options), async_op)


def all_gather_into_tensor(
    output_tensor: Tensor, input_tensor: Tensor, group: Group = None, async_op: bool = False
) -> Work | None:
    """All ranks' tensors, one after another, in one tensor of world size times as many elements."""
    if not _takes_part(group):
        return None
    options = _options(_C.AllgatherOptions, async_op)
    return _finish(_resolve(group)._allgather_base(_tensor(output_tensor), _tensor(input_tensor), options), async_op)


def all_gather_coalesced(
    output_tensor_lists: Sequence[list[Tensor]],
    input_tensor_list: Sequence[Tensor],
    group: Group = None,
    async_op: bool = False,
) -> Future[list[Any]] | None:
    """all_gather of several tensors: output_tensor_lists[rank][i] is input_tensor_list[i] of that rank.

    With `async_op` a Future, as in PyTorch.
    """
    if not _takes_part(group):
        return None
    lists = [list(outputs) for outputs in zip(*output_tensor_lists)]
    options = _options(_C.AllgatherOptions, async_op)
    work = _finish(_resolve(group).allgather(lists, list(input_tensor_list), options), async_op)
    return None if work is None else work.get_future()


def gather(
    tensor: Tensor,
    gather_list: list[Tensor] | None = None,
    dst: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """All ranks' tensors on rank `dst` (default 0), into `gather_list`, which only that rank gives."""
    if not _takes_part(group):
        return None
    root = _rank_in(group, dst, group_dst, "dst", default=0)
    options = _options(_C.GatherOptions, async_op, rootRank=root)
    resolved = _resolve(group)
    if resolved.rank() == root and gather_list is None:
        raise InvalidArgument(f"gather: rank {root} of the group receives and must give gather_list.")
    outputs = [gather_list] if gather_list else []
    return _finish(resolved.gather(outputs, [_tensor(tensor)], options), async_op)


def scatter(
    tensor: Tensor,
    scatter_list: list[Tensor] | None = None,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """One tensor of rank `src` (default 0) to each rank, out of `scatter_list`, which only that rank gives."""
    if not _takes_part(group):
        return None
    root = _rank_in(group, src, group_src, "src", default=0)
    options = _options(_C.ScatterOptions, async_op, rootRank=root)
    resolved = _resolve(group)
    if resolved.rank() == root and scatter_list is None:
        raise InvalidArgument(f"scatter: rank {root} of the group sends and must give scatter_list.")
    inputs = [scatter_list] if scatter_list else []
    return _finish(resolved.scatter([_tensor(tensor)], inputs, options), async_op)


def reduce_scatter(
    output: Tensor,
    input_list: list[Tensor],
    op: ReduceOp = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
) -> Work | None:
    """The reduction of all ranks' input_list[this rank]."""
    if not _takes_part(group):
        return None
    options = _options(_C.ReduceScatterOptions, async_op, reduceOp=op)
    return _finish(_resolve(group).reduce_scatter([_tensor(output)], [input_list], options), async_op)


def reduce_scatter_tensor(
    output: Tensor, input: Tensor, op: ReduceOp = ReduceOp.SUM, group: Group = None, async_op: bool = False
) -> Work | None:
    """output of rank i: reduction of part i of every rank's `input`, which is world size outputs along dimension 0."""
    if not _takes_part(group):
        return None
    options = _options(_C.ReduceScatterOptions, async_op, reduceOp=op)
    return _finish(_resolve(group)._reduce_scatter_base(_tensor(output), _tensor(input), options), async_op)


def all_to_all(
    output_tensor_list: list[Tensor], input_tensor_list: list[Tensor], group: Group = None, async_op: bool = False
) -> Work | None:
    """input_tensor_list[i] goes to rank i, output_tensor_list[i] comes from it."""
    if not _takes_part(group):
        return None
    options = _options(_C.AllToAllOptions, async_op)
    return _finish(_resolve(group).alltoall(output_tensor_list, input_tensor_list, options), async_op)


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: Group = None,
    async_op: bool = False,
) -> Work | None:
    """Part i of `input` goes to rank i; `output` receives the parts that come, in the order of the ranks.

    Parts are along dimension 0, even or of the sizes given: input_split_sizes[i] rows go to rank i, and
    output_split_sizes[i] rows come from it. `output` may be `input`.
    """
    if not _takes_part(group):
        return None
    options = _options(_C.AllToAllOptions, async_op)
    splits = (output_split_sizes or [], input_split_sizes or [])
    return _finish(_resolve(group).alltoall_base(_tensor(output), _tensor(input), *splits, options), async_op)


def barrier(
    group: Group = None,
    async_op: bool = False,
    device_ids: list[int] | None = None,
    timeout: timedelta | None = None,
) -> Work | None:
    """Ends when all ranks have come; TimeoutError when they have not within `timeout` (None: the group's)."""
    if not _takes_part(group):
        return None
    options = _options(_C.BarrierOptions, async_op, device_ids=device_ids or [])
    if timeout is not None:
        options.timeout = timeout
    return _finish(_resolve(group).barrier(options), async_op)


def monitored_barrier(group: Group = None, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
    """A barrier whose TimeoutError, on rank 0, names the ranks that did not come: the first, or all of them.

    timeout: None is the group's, timedelta(0) no time at all.
    """
    if not _takes_part(group):
        return
    resolved = _resolve(group)
    resolved.monitored_barrier(resolved.timeout if timeout is None else timeout, wait_all_ranks)


def isend(
    tensor: Tensor, dst: int | None = None, group: Group = None, tag: int = 0, group_dst: int | None = None
) -> Work | None:
    """Sends to rank `dst` and returns at once; `tensor` must not change until the Work has ended."""
    if not _takes_part(group):
        return None
    return _resolve(group).send([tensor], _rank_in(group, dst, group_dst, "dst"), tag)


def irecv(
    tensor: Tensor, src: int | None = None, group: Group = None, tag: int = 0, group_src: int | None = None
) -> Work | None:
    """Receives from rank `src` (from any, when it is not given) and returns at once."""
    if not _takes_part(group):
        return None
    if src is None and group_src is None:
        return _resolve(group).recv_anysource([tensor], tag)
    return _resolve(group).recv([tensor], _rank_in(group, src, group_src, "src"), tag)


def send(
    tensor: Tensor, dst: int | None = None, group: Group = None, tag: int = 0, group_dst: int | None = None
) -> None:
    """Sends to rank `dst`; returns when `tensor` may change again."""
    work = isend(tensor, dst, group, tag, group_dst)
    if work is not None:
        work.wait()


def recv(
    tensor: Tensor, src: int | None = None, group: Group = None, tag: int = 0, group_src: int | None = None
) -> int:
    """Receives from rank `src` (from any, when it is not given); returns who sent, -1 when not in the group."""
    work = irecv(tensor, src, group, tag, group_src)
    if work is None:
        return -1
    work.wait()
    if src is not None:
        return src
    return get_global_rank(group, work._source_rank() if group_src is None else group_src)


class P2POp:
    """One message of batch_isend_irecv(): isend or irecv, its tensor, and the other rank (`peer` or `group_peer`)."""

    def __init__(
        self,
        op: Callable[..., Any],
        tensor: Tensor,
        peer: int | None = None,
        group: Group = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        if op not in (isend, irecv):
            raise InvalidArgument("P2POp: op must be gradwire.distributed.isend or irecv.")
        self.op = op
        self.tensor = tensor
        self.group = _resolve(group)
        self.tag = tag
        self.group_peer = _rank_in(group, peer, group_peer, "peer")
        self.peer = get_global_rank(group, self.group_peer)

    def __repr__(self) -> str:
        return f"P2POp({self.op.__name__}, peer={self.peer}, tag={self.tag}, tensor={tuple(self.tensor.shape)})"


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[Work]:
    """Starts several messages; messages never wait for one another, so any order is right."""
    if not p2p_op_list or not all(isinstance(op, P2POp) for op in p2p_op_list):
        raise InvalidArgument("batch_isend_irecv: a list of P2POp was expected, with at least one.")
    if any(op.group is not p2p_op_list[0].group for op in p2p_op_list):
        raise InvalidArgument("batch_isend_irecv: all messages must be of one group.")
    works = []
    for op in p2p_op_list:
        side = {"group_dst": op.group_peer} if op.op is isend else {"group_src": op.group_peer}
        work = op.op(op.tensor, group=op.group, tag=op.tag, **side)
        if work is not None:
            works.append(work)
    return works


def supports_complex(reduceOp: ReduceOp) -> bool:
    """Whether complex tensors may be reduced so."""
    return reduceOp in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT) or reduceOp.name == "PREMUL_SUM"


_all_gather_base = all_gather_into_tensor
_reduce_scatter_base = reduce_scatter_tensor
all_gather_single = all_gather_into_tensor
reduce_scatter_single = reduce_scatter_tensor
