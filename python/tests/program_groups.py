# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Four ranks over the backend "gradwire": groups of every kind, objects, functional collectives, groups of either library."""
from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as td
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch_programs import RANK, SIZE, make_model, meet, report, train

import gradwire

OTHERS = [rank for rank in range(SIZE) if rank != RANK]


def digits(group: td.ProcessGroup) -> int:
    """The sum of ten to the power of each rank of `group`: who took part."""
    tensor = torch.tensor([10**RANK])
    td.all_reduce(tensor, group=group)
    return int(tensor.item())


def check_groups() -> None:
    pairs = [td.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    mine = pairs[RANK // 2]
    assert digits(mine) == (11, 1100)[RANK // 2]
    uneven = td.new_group([1, 3], timeout=timedelta(seconds=90))
    if RANK in (1, 3):
        assert digits(uneven) == 1010 and td.get_rank(uneven) == RANK // 2
        tensor = torch.tensor([RANK])
        td.broadcast(tensor, src=3, group=uneven)
        assert tensor.item() == 3
    else:
        assert td.get_rank(uneven) == -1
    assert digits(td.new_subgroups(2)[0]) == (11, 1100)[RANK // 2]
    assert digits(td.new_subgroups_by_enumeration([[0, 2], [1, 3]])[0]) == (101, 1010)[RANK % 2]
    alone = td.new_group([RANK], use_local_synchronization=True)
    assert digits(alone) == 10**RANK
    # torch.distributed.split_group() wants an accelerator; what it calls underneath does not.
    split = td.group.WORLD.split_group([[0, 2], [1, 3]][RANK % 2], timeout=timedelta(seconds=90))
    tensor = torch.tensor([10**RANK])
    split.allreduce([tensor]).wait()
    assert tensor.item() == (101, 1010)[RANK % 2] and split.rank() == RANK // 2
    td.destroy_process_group(mine)
    assert digits(td.group.WORLD) == 1111
    td.barrier()


def check_objects() -> None:
    thing = {"rank": RANK, "list": [RANK] * (RANK + 1), "tensor": torch.full((RANK,), 2.0)}
    everything = [None] * SIZE
    td.all_gather_object(everything, thing)
    assert [item["rank"] for item in everything] == list(range(SIZE))
    assert all(len(item["tensor"]) == rank for rank, item in enumerate(everything))
    gathered = [None] * SIZE if RANK == 2 else None
    td.gather_object(thing["list"], gathered, dst=2)
    assert RANK != 2 or gathered == [[rank] * (rank + 1) for rank in range(SIZE)]
    shared = [f"from {RANK}", RANK]
    td.broadcast_object_list(shared, src=1)
    assert shared == ["from 1", 1]
    part = [None]
    td.scatter_object_list(part, [f"for {rank}" for rank in range(SIZE)] if RANK == 3 else None, src=3)
    assert part == [f"for {RANK}"]
    if RANK == 0:
        td.send_object_list([{"a": 1}, "b"], dst=1)
    elif RANK == 1:
        received = [None, None]
        td.recv_object_list(received, src=0)
        assert received == [{"a": 1}, "b"]


def check_collectives() -> None:
    """What PyTorch's suite tries over no engine for CPUs."""
    received = [torch.zeros(rank + 1) for rank in range(SIZE)]
    td.all_to_all(received, [torch.full((RANK + 1,), 10.0 * RANK + rank) for rank in range(SIZE)])
    assert [tensor.tolist() for tensor in received] == [[10.0 * rank + RANK] * (rank + 1) for rank in range(SIZE)]
    row = torch.full((SIZE * 2,), 0.0)
    td.all_to_all_single(row, torch.arange(SIZE * 2.0) + 10 * RANK)
    assert row.tolist() == [10.0 * rank + 2 * RANK + i for rank in range(SIZE) for i in range(2)]
    part = torch.zeros(2)
    td.reduce_scatter(part, [torch.full((2,), 10.0**RANK * (rank + 1)) for rank in range(SIZE)])
    assert part.tolist() == [1111.0 * (RANK + 1)] * 2
    td.reduce_scatter_tensor(part, torch.arange(SIZE * 2.0) * 10**RANK, td.ReduceOp.AVG)
    assert part.tolist() == [1111 * 2 * RANK / SIZE, 1111 * (2 * RANK + 1) / SIZE]
    td.all_gather_into_tensor(row, torch.full((2,), float(RANK)))
    assert row.tolist() == [float(rank) for rank in range(SIZE) for _ in range(2)]

    sums = [torch.full((3,), float(10**RANK)), torch.full((2,), 2.0 * 10**RANK)]
    with td._coalescing_manager():
        for tensor in sums:
            td.all_reduce(tensor)
    assert [tensor[0].item() for tensor in sums] == [1111, 2222]
    rows = [torch.zeros(SIZE), torch.zeros(SIZE * 2)]
    with td._coalescing_manager(async_ops=True) as pending:
        for i, tensor in enumerate(rows):
            td.all_gather_into_tensor(tensor, torch.full((i + 1,), float(RANK)))
    pending.wait()
    assert rows[0].tolist() == [0, 1, 2, 3] and rows[1].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]

    for dtype in (torch.bool, torch.uint8, torch.int16, torch.bfloat16, torch.complex64, torch.float8_e4m3fn):
        tensor = torch.full((3,), RANK % 2).to(dtype)
        copies = [torch.zeros(3).to(dtype) for _ in range(SIZE)]
        td.all_gather(copies, tensor)
        td.broadcast(tensor, src=1)
        assert [copy[0].float().item() for copy in copies] == [0, 1, 0, 1] and tensor[2].float().item() == 1, dtype
    try:
        td.all_reduce(torch.ones(2), op=td.ReduceOp.BAND)
    except ValueError as error:  # before any communication
        assert "all_reduce" in str(error)
    else:
        raise AssertionError("a bitwise operation on floats was not refused")


def check_functional(group: td.ProcessGroup) -> None:
    mine = torch.arange(4.0) + 10 * RANK
    everyone = torch.stack([torch.arange(4.0) + 10 * rank for rank in range(SIZE)])
    for op, expected in (("sum", everyone.sum(0)), ("avg", everyone.mean(0)), ("max", everyone.amax(0))):
        assert torch.equal(functional.all_reduce(mine, op, group), expected), op
    assert torch.equal(functional.all_gather_tensor(mine, 0, group), everyone.flatten())
    assert torch.equal(functional.all_gather_tensor(mine[None].T, 1, group), everyone.T)
    assert torch.equal(functional.reduce_scatter_tensor(mine, "sum", 0, group), everyone.sum(0)[RANK : RANK + 1])
    assert torch.equal(functional.broadcast(mine, 2, group), everyone[2])
    assert torch.equal(functional.all_to_all_single(mine, None, None, group), everyone[:, RANK])
    # Rank r sends r + 1 elements to every rank.
    sent = torch.full(((RANK + 1) * SIZE,), float(RANK))
    got = functional.all_to_all_single(sent, [rank + 1 for rank in range(SIZE)], [RANK + 1] * SIZE, group)
    assert got.tolist() == [float(rank) for rank in range(SIZE) for _ in range(rank + 1)]
    several = functional.all_reduce_coalesced([mine, mine[:2].double()], "sum", group)
    assert torch.equal(several[0], everyone.sum(0)) and torch.equal(several[1], everyone.sum(0)[:2].double())
    several = functional.all_gather_into_tensor_coalesced([mine, mine[:1]], group)
    assert torch.equal(several[0], everyone.flatten()) and torch.equal(several[1], everyone[:, 0])
    several = functional.reduce_scatter_tensor_coalesced([mine, 2 * mine], "sum", [0, 0], group)
    assert torch.equal(several[1], 2 * several[0]) and several[0].item() == everyone.sum(0)[RANK]
    assert torch.equal(functional.permute_tensor(mine, [1, 2, 3, 0], group), everyone[(RANK - 1) % SIZE])

    leaf = mine.clone().requires_grad_()
    gathered = functional.all_gather_tensor_autograd(leaf, 0, group)
    (gathered * torch.arange(16.0) * (RANK + 1)).sum().backward()  # its gradient: the sum over ranks of their weights
    assert torch.equal(leaf.grad, 10 * torch.arange(16.0).view(SIZE, 4)[RANK])


def check_groups_of_either(backend: str = "gradwire") -> dict[str, list[float]]:
    """DDP of either library over a group of the other's making, and over one that went there and came back."""
    theirs = td.new_group()
    ours = gradwire.from_c10d(theirs)
    assert (ours.rank(), ours.size()) == (RANK, SIZE)
    back = gradwire.to_c10d(ours)
    tensor = torch.tensor([10**RANK])
    back.allreduce([tensor]).wait()
    assert tensor.item() == 1111 and back.name() == "gradwire"

    made = gradwire.distributed.make_process_group(
        "auto", gradwire.distributed.FileStore(os.environ["MEET"] + "-ours", SIZE), RANK, SIZE)
    around = td.ProcessGroup(RANK, SIZE)
    around._register_backend(torch.device("cpu"), td.ProcessGroup.BackendType.CUSTOM, gradwire.to_c10d(made))
    around._set_group_name("around")
    around._set_group_desc("around")
    losses = {}
    for name, wrap, group in (("plain", nn.parallel.DistributedDataParallel, None),
                              ("from_c10d", gradwire.nn.parallel.DistributedDataParallel, ours),
                              ("to_c10d", nn.parallel.DistributedDataParallel, around)):
        model = wrap(make_model(), process_group=group)
        losses[name] = train(model, torch.optim.SGD(model.parameters(), 0.05), range(5))
    made.shutdown()
    return losses


meet("gradwire", "four")
check_groups()
check_objects()
check_collectives()
check_functional(td.group.WORLD)
found = check_groups_of_either()
td.destroy_process_group()
report(found)
