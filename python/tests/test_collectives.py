# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Collectives and messages, their works and their errors, with ranks as threads."""
import threading
import warnings
from datetime import timedelta

import pytest
import torch

from gradwire import _C
from gradwire import distributed as dist
from gradwire.distributed import nn as dnn

SIZE = 3


def tensor_of(rank: int) -> torch.Tensor:
    return torch.arange(4.0) + 10 * rank


def test_collectives_do_what_their_names_say(ranks):
    total = sum(tensor_of(rank) for rank in range(SIZE))

    def body(group):
        rank = group.rank()
        tensor = tensor_of(rank)
        assert dist.all_reduce(tensor, group=group) is None
        assert torch.equal(tensor, total)
        tensor = tensor_of(rank)
        work = dist.all_reduce(tensor, dist.ReduceOp.MAX, group, async_op=True)
        assert work.wait() and work.is_completed() and work.is_success()
        assert torch.equal(tensor, tensor_of(SIZE - 1)) and work.get_future().value()[0].data_ptr() == tensor.data_ptr()
        tensor = tensor_of(rank)
        dist.broadcast(tensor, 1, group)
        assert torch.equal(tensor, tensor_of(1))
        gathered = [torch.empty(4) for _ in range(SIZE)]
        dist.all_gather(gathered, tensor_of(rank), group)
        assert all(torch.equal(part, tensor_of(r)) for r, part in enumerate(gathered))
        whole = torch.empty(SIZE, 4)
        dist.all_gather_into_tensor(whole, tensor_of(rank), group)
        assert torch.equal(whole, torch.stack([tensor_of(r) for r in range(SIZE)]))
        parts = [torch.empty(4) for _ in range(SIZE)] if rank == 2 else None
        dist.gather(tensor_of(rank), parts, group_dst=2, group=group)
        assert parts is None or torch.equal(torch.stack(parts), whole)
        part = torch.empty(4)
        dist.scatter(part, list(whole) if rank == 0 else None, group=group)
        assert torch.equal(part, tensor_of(rank))
        dist.reduce_scatter(part, [tensor_of(rank)] * SIZE, group=group)
        assert torch.equal(part, total)
        out = torch.empty(SIZE)
        dist.all_to_all_single(out, torch.arange(float(SIZE)) + 10 * rank, group=group)
        assert torch.equal(out, torch.tensor([10.0 * r + rank for r in range(SIZE)]))
        dist.barrier(group)

    ranks.all_well(SIZE, body)


def test_futures_hold_what_pytorchs_hold(ranks):
    def body(group):
        rank = group.rank()
        outputs = [torch.empty(4) for _ in range(SIZE)]
        gathered = dist.all_gather(outputs, tensor_of(rank), group, async_op=True).get_future().wait()
        assert [tensor.data_ptr() for tensor in gathered] == [tensor.data_ptr() for tensor in outputs]
        parts = [torch.empty(4) for _ in range(SIZE)] if rank == 1 else None
        gathered = dist.gather(tensor_of(rank), parts, group=group, group_dst=1, async_op=True).get_future().wait()
        assert len(gathered) == (SIZE if rank == 1 else 0) and all(isinstance(each, torch.Tensor) for each in gathered)
        # Two inputs: a list for each.
        lists = [[torch.empty(4) for _ in range(SIZE)] for _ in range(2)]
        gathered = group.allgather(lists, [tensor_of(rank), tensor_of(rank)]).get_future().wait()
        assert [len(each) for each in gathered] == [SIZE, SIZE]
        tensors = [tensor_of(rank), 2 * tensor_of(rank)]
        future = dist.all_reduce_coalesced(tensors, group=group, async_op=True)
        assert isinstance(future, torch.Future) and torch.equal(future.wait()[1], 2 * tensors[0])
        lists = [[torch.empty(4), torch.empty(2)] for _ in range(SIZE)]
        future = dist.all_gather_coalesced(lists, [tensor_of(rank), torch.full((2,), float(rank))], group, async_op=True)
        assert isinstance(future, torch.Future) and future.wait() is not None
        assert lists[2][1].tolist() == [2.0, 2.0]
        assert dist.all_reduce_coalesced(tensors, group=group) is None

    ranks.all_well(SIZE, body)


def test_each_tensor_of_a_list_is_reduced_by_itself(ranks):
    def body(group):
        tensors = [torch.ones(2), torch.full((2,), 10.0)]
        group.allreduce(tensors).wait()
        assert [tensor.tolist() for tensor in tensors] == [[2.0, 2.0], [20.0, 20.0]]

    ranks.all_well(2, body)


def test_a_monitored_barrier_without_time_does_not_wait(ranks):
    given_up = threading.Event()

    def body(group):
        if group.rank() == 1:
            assert given_up.wait(60)
            return
        with pytest.raises(dist.TimeoutError):
            group.monitored_barrier(timedelta(0))
        with pytest.raises(dist.TimeoutError):
            dist.monitored_barrier(group, timedelta(0))
        given_up.set()

    ranks.all_well(2, body)


def test_a_profiler_sees_the_calls_of_a_group(ranks):
    def body(group):
        if group.rank() == 1:
            for _ in range(2):
                dist.all_reduce(torch.ones(3), group=group)
            dist.all_gather([torch.ones(1), torch.ones(1)], torch.ones(1), group)
            dist.send(torch.ones(2), 0, group)
            return []
        with torch.profiler.profile(record_shapes=True) as profile:
            dist.all_reduce(torch.ones(3), group=group)
            dist.all_reduce(torch.ones(3), group=group, async_op=True).wait()
            dist.all_gather([torch.ones(1), torch.ones(1)], torch.ones(1), group)
            dist.recv(torch.ones(2), 1, group)
        return [(event.name, event.input_shapes) for event in profile.events() if event.name.startswith("gradwire:")]

    seen = ranks.all_well(2, body)[0]
    assert sorted(seen) == [("gradwire:all_gather", [[1]]), ("gradwire:all_reduce", [[3]]), ("gradwire:all_reduce", [[3]]),
                            ("gradwire:recv", [[2]])]


def test_short_forms_and_newer_names_of_pytorch(ranks):
    soon = timedelta(seconds=60)

    def body(group):
        rank, everyones = group.rank(), [tensor_of(each) for each in range(SIZE)]
        total = sum(everyones)

        def mine():
            return tensor_of(rank)

        def outputs():
            return [torch.empty(4) for _ in range(SIZE)]

        def assert_gathered(tensors):
            assert all(map(torch.equal, tensors, everyones))

        for options in ((), (soon,), (None,)):
            tensor, gathered = mine(), outputs()
            group.broadcast(tensor, 1, *options).wait()
            assert torch.equal(tensor, everyones[1])
            group.allgather(gathered, mine(), *options).wait()
            assert_gathered(gathered)
            gathered = outputs() if rank == 2 else []
            group.gather(gathered, mine(), 2, *options).wait()
            assert rank != 2 or gathered and not assert_gathered(gathered)
            group.scatter(tensor, everyones if rank == 0 else [], 0, *options).wait()
            assert torch.equal(tensor, mine())
            gathered = outputs()
            group.alltoall(gathered, [mine() for _ in range(SIZE)], *options).wait()
            assert_gathered(gathered)
            group.barrier(*options).wait()
            for method in (group.alltoall_base, group.all_to_all_single):
                got = torch.empty(SIZE, 4)
                method(got, mine().expand(SIZE, 4).contiguous(), [], [], *options).wait()
                assert_gathered(got)
        for op, result in (((), total), ((dist.ReduceOp.MAX,), everyones[-1]), ((dist.ReduceOp.MAX, soon), everyones[-1])):
            for given in (list, lambda tensors: tensors[0]):
                tensor = mine()
                group.allreduce(given([tensor]), *op).wait()
                assert torch.equal(tensor, result)
            tensor, got = mine(), torch.empty(4)
            group.reduce(tensor, 0, *op).wait()
            assert rank != 0 or torch.equal(tensor, result)
            group.reduce_scatter(got, [mine() for _ in range(SIZE)], *op).wait()
            assert torch.equal(got, result)
        lists = [[torch.empty(4), torch.empty(1)] for _ in range(SIZE)]
        group.allgather_coalesced(lists, [mine(), torch.tensor([float(rank)])]).wait()
        assert_gathered([each[0] for each in lists])
        assert [each[1].item() for each in lists] == [0.0, 1.0, 2.0]
        with pytest.raises(dist.InvalidArgument, match="one for each input"):
            group.allgather_coalesced(lists, [mine()])
        got, part = torch.empty(SIZE * 4), torch.empty(4)
        group.all_gather_single(got, mine()).wait()
        group.all_gather_single_coalesced([got], [mine()]).wait()
        assert torch.equal(got, torch.cat(everyones))
        group.reduce_scatter_single(part, mine().repeat(SIZE)).wait()
        group.reduce_scatter_single_coalesced([part], [mine().repeat(SIZE)]).wait()
        assert torch.equal(part, total)
        assert group._get_backend_name() == group.name() == "threads"
        with pytest.raises(dist.InvalidArgument):
            group.barrier(timedelta(seconds=-1))

    ranks.all_well(SIZE, body)


def test_the_parts_of_a_reduce_scatter_may_differ_in_length(ranks):
    def body(group):
        rank = group.rank()
        got = torch.empty(rank + 1, 2)
        parts = [torch.full((part + 1, 2), float(rank + part)) for part in range(SIZE)]
        work = dist.reduce_scatter(got, parts, group=group, async_op=True)
        work.wait()
        assert torch.equal(got, torch.full((rank + 1, 2), 3.0 + 3 * rank))
        with pytest.raises(dist.InvalidArgument, match="must have"):
            dist.reduce_scatter(torch.empty(7), parts, group=group)

    ranks.all_well(SIZE, body)


def test_messages_and_batches(ranks):
    def body(group):
        rank, right, left = group.rank(), (group.rank() + 1) % SIZE, (group.rank() - 1) % SIZE
        received = torch.empty(4)
        works = dist.batch_isend_irecv([
            dist.P2POp(dist.isend, tensor_of(rank), right, group), dist.P2POp(dist.irecv, received, left, group)])
        for work in works:
            work.wait()
        assert torch.equal(received, tensor_of(left))
        if rank == 0:
            senders = {dist.recv(received, group=group) for _ in range(SIZE - 1)}
            assert senders == set(range(1, SIZE))
        else:
            dist.send(tensor_of(rank), 0, group)

    ranks.all_well(SIZE, body)


@pytest.mark.parametrize("default_device", ["cpu", "meta"])
def test_objects_travel(ranks, default_device):
    def body(group):
        with torch.device(default_device):
            exchange(group)

    def exchange(group):
        rank = group.rank()
        everything = [None] * SIZE
        dist.all_gather_object(everything, {"rank": rank, "text": "x" * rank * 100}, group)
        assert everything == [{"rank": r, "text": "x" * r * 100} for r in range(SIZE)]
        objects = [1, "two", {3}] if rank == 1 else [None] * 3
        dist.broadcast_object_list(objects, 1, group)
        assert objects == [1, "two", {3}]
        gathered = [None] * SIZE if rank == 0 else None
        dist.gather_object((rank,), gathered, group=group)
        assert rank != 0 or gathered == [(r,) for r in range(SIZE)]
        out = [None]
        dist.scatter_object_list(out, [r * "y" for r in range(SIZE)] if rank == 2 else None, 2, group)
        assert out == ["y" * rank]
        if rank == 0:
            dist.send_object_list(["hello", 5], 1, group)
        elif rank == 1:
            got = [None, None]
            assert dist.recv_object_list(got, 0, group) == 0 and got == ["hello", 5]

    ranks.all_well(SIZE, body)


def test_differentiable_collectives_have_the_gradients_of_the_sum_of_losses(ranks):
    def body(group):
        x = tensor_of(group.rank()).requires_grad_()
        (dnn.all_reduce(x, group=group) ** 2).sum().backward()
        total = sum(tensor_of(rank) for rank in range(SIZE))
        assert torch.equal(x.grad, SIZE * 2 * total)
        x = tensor_of(group.rank()).requires_grad_()
        sum(((r + 1) * part).sum() for r, part in enumerate(dnn.all_gather(x, group))).backward()
        assert torch.equal(x.grad, torch.full((4,), float(SIZE * (group.rank() + 1))))

    ranks.all_well(SIZE, body)


def test_ranks_that_call_different_things_are_told(ranks):
    def body(group):
        if group.rank() == 0:
            dist.barrier(group)
        else:
            dist.all_reduce(torch.ones(2), group=group)

    ranks(2, body)
    assert all(isinstance(error, dist.MismatchError) for error in ranks.errors)
    assert all(isinstance(error, (RuntimeError, torch.distributed.DistBackendError)) for error in ranks.errors)


def test_errors_name_the_ranks_that_are_missing(ranks):
    given_up = threading.Event()

    def body(group):
        if group.rank() == 1:
            assert given_up.wait(60)
            return
        try:
            dist.barrier(group, timeout=timedelta(milliseconds=50))
        finally:
            given_up.set()

    ranks(2, body)
    error = ranks.errors[0]
    assert isinstance(error, dist.TimeoutError) and isinstance(error, TimeoutError) and error.peers == [1]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_bad_arguments_are_value_errors_before_anything_is_sent(ranks):
    def body(group):
        with pytest.raises(ValueError, match="rank 7"):
            dist.broadcast(torch.ones(1), 7, group)
        with pytest.raises(dist.InvalidArgument):
            dist.all_reduce(torch.ones(2, dtype=torch.bool), dist.ReduceOp.AVG, group)
        with pytest.raises(dist.UnsupportedError):
            _C.ProcessGroup(0, 1).barrier()
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
        for call in (dist.all_reduce, lambda tensor, group: dist.broadcast(tensor, 0, group)):
            with pytest.raises(dist.InvalidArgument, match=f"rank {group.rank()} .* is a nested tensor"):
                call(nested, group=group)
        dist.barrier(group)

    ranks.all_well(2, body)


def test_waits_let_other_threads_run(ranks):
    reached = threading.Event()

    def body(group):
        if group.rank() == 0:
            work = group.barrier()
            work.wait()  # without the interpreter's lock, or rank 1 could not come
        else:
            assert reached.wait(60)
            dist.barrier(group)

    threading.Timer(0.2, reached.set).start()
    ranks.all_well(2, body)


def test_a_work_in_python_answers_for_itself():
    class MyWork(dist.Work):
        def __init__(self):
            super().__init__()
            self.future = torch.futures.Future()

        def get_future(self):
            return self.future

    work = MyWork()
    assert not work.is_completed()
    with pytest.raises(dist.TimeoutError):
        work.wait(timedelta(milliseconds=20))
    work.future.set_result([torch.ones(1)])
    assert work.wait() and work.is_success() and torch.equal(work.result()[0], torch.ones(1))
    assert work.exception() is None
    with pytest.raises(dist.UnsupportedError):
        dist.Work().wait()
    with pytest.raises(TypeError, match="Future"):
        dist._create_work_from_future(5)


def test_messages_of_one_batch_may_name_the_default_group_or_not(ranks):
    store = dist.HashStore()

    def body(group):
        dist.init_process_group("threads", store=store, rank=group.rank(), world_size=2)
        other, received = 1 - group.rank(), torch.zeros(2)
        messages = [dist.P2POp(dist.isend, torch.ones(2), other), dist.P2POp(dist.irecv, received, other, dist.group.WORLD)]
        assert all(message.group is dist.group.WORLD for message in messages)
        for work in dist.batch_isend_irecv(messages):
            work.wait()
        assert torch.equal(received, torch.ones(2))
        elsewhere = dist.P2POp(dist.irecv, received, other, dist.new_group())
        with pytest.raises(dist.InvalidArgument, match="one group"):
            dist.batch_isend_irecv([messages[0], elsewhere])
        dist.destroy_process_group()

    ranks.all_well(2, body)


def test_a_communication_that_a_rank_has_no_part_in_warns():
    dist.init_process_group("threads", store=dist.HashStore(), rank=0, world_size=1)
    try:
        outside, tensor = dist.GroupMember.NON_GROUP_MEMBER, torch.ones(2)
        calls = {
            "all_reduce": lambda: dist.all_reduce(tensor, group=outside),
            "all_gather_object": lambda: dist.all_gather_object([None], 1, group=outside),
            "barrier": lambda: dist.barrier(group=outside),
            "isend": lambda: dist.send(tensor, 0, group=outside),
        }
        for name, call in calls.items():
            with pytest.warns(UserWarning, match=f"^{name} does nothing on rank 0, which is not part of the group"):
                call()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert dist.get_rank(outside) == dist.get_world_size(outside) == -1
            dist.destroy_process_group(outside)
    finally:
        dist.destroy_process_group()


def test_an_argument_of_another_type_is_named(ranks):
    def body(group):
        with pytest.raises(TypeError, match="ReduceOp was expected .* not 'sum'"):
            dist.all_reduce(torch.ones(2), "sum", group=group)
        with pytest.raises(TypeError, match="torch.Tensor was expected, not list"):
            dist.all_reduce([torch.ones(2)], group=group)
        with pytest.raises(TypeError, match="torch.Tensor was expected, not NoneType"):
            dist.broadcast(None, group_src=0, group=group)
        dist.all_reduce(torch.ones(2), group=group)  # nothing was called before

    ranks.all_well(2, body)
