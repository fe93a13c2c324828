# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Groups and what belongs to them, in Python classes and out of them."""
import copy
import gc
import os
import pickle
import re
import threading
import weakref
from datetime import timedelta

import pytest
import torch

from gradwire import _C
from gradwire import distributed as dist

from dict_store import DictStore


def test_parts_of_parts_know_their_ranks(ranks):
    def body(group):
        rank = group.rank()
        half = group.split(rank % 2, -rank)  # the highest rank first
        assert dist.get_process_group_ranks(half) == [[2, 0], [3, 1]][rank % 2]
        assert dist.get_process_group_ranks(half.dup()) == [[2, 0], [3, 1]][rank % 2]
        alone = half.split(half.rank())
        assert dist.get_process_group_ranks(alone) == [rank]
        assert dist.get_global_rank(half, half.rank()) == rank and dist.get_group_rank(half, rank) == half.rank()
        assert (group.split(-1) if rank == 0 else group.split(0)) is None or rank != 0

    ranks.all_well(4, body)


def test_the_longest_timedelta_is_a_timeout_of_a_group(ranks):
    longest = timedelta.max
    store = dist.HashStore()

    def body(group):
        made = dist.make_process_group("threads", store, group.rank(), 2, longest)
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=made)
        work = dist.all_reduce(tensor, group=made, async_op=True)
        assert work is not None
        work.wait(longest)
        dist.monitored_barrier(made, longest)
        group._set_default_timeout(longest)
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == 8

    ranks.all_well(2, body)


class LonelyGroup(dist.ProcessGroup):
    def __init__(self):
        super().__init__(0, 1)
        self.calls = []

    def allreduce(self, tensors, opts):
        self.calls.append(("allreduce", len(tensors), opts.reduceOp))
        future = torch.futures.Future()
        future.set_result(tensors)
        return dist._create_work_from_future(future)

    def getBackendName(self):
        return "lonely"


def test_a_group_in_python_is_called_with_c10ds_arguments():
    group = LonelyGroup()
    tensor = torch.ones(2)
    dist.all_reduce(tensor, dist.ReduceOp.PRODUCT, group)
    assert group.calls == [("allreduce", 1, dist.ReduceOp.PRODUCT)]
    assert (group.rank(), group.size(), group.name()) == (0, 1, "lonely")
    # A default that is made of another: a barrier is an all-reduce of one byte.
    _C.ProcessGroup.barrier(group)
    assert group.calls[-1][0] == "allreduce"
    group.timeout = timedelta(seconds=5)
    assert group.timeout == timedelta(seconds=5)


@pytest.mark.parametrize("theirs", [False, True], ids=["gradwire", "torch"])
def test_a_program_adds_a_backend_of_its_own(theirs):
    module, c10d = (torch.distributed, torch._C._distributed_c10d) if theirs else (dist, dist)
    asked = []

    class Own(module.ProcessGroup):
        def allreduce(self, tensors, opts):
            for tensor in tensors:
                tensor.add_(2)
            future = torch.futures.Future()
            future.set_result(tensors)
            return c10d._create_work_from_future(future)

        def allgather(self, output_tensors, input_tensors, opts):
            output_tensors[0][0].copy_(input_tensors[0])
            future = torch.futures.Future()
            future.set_result(output_tensors)
            return c10d._create_work_from_future(future)

        def getBackendName(self):
            return "own"

    def make(store, rank, size, timeout):
        store.set("key", "value")
        asked.append((rank, size, timeout))
        return Own(rank, size)

    module.Backend.register_backend("Own", make, devices=["cpu"])
    assert module.Backend.OWN == module.Backend("OWN") == "own" and module.is_backend_available("own")
    minute = timedelta(seconds=60)
    for _ in range(2):
        module.init_process_group("own", store=module.HashStore(), rank=0, world_size=1, timeout=minute)
        try:
            gc.collect()
            tensor = torch.ones(2)
            module.all_reduce(tensor)
            module.all_reduce(tensor, group=module.new_group([0], timeout=timedelta(seconds=50)))
            assert tensor.tolist() == [5, 5]
            assert type(module.group.WORLD) is Own and module.get_backend() == "own"
        finally:
            module.destroy_process_group()
    assert asked == [(0, 1, minute), (0, 1, timedelta(seconds=50))] * 2


def test_a_backend_of_the_programs_own_is_checked():
    make = dist.Backend.register_backend
    for name in ("shm", "AUTO", ""):
        with pytest.raises(dist.InvalidArgument, match="register_backend"):
            make(name, lambda *_: LonelyGroup())
    with pytest.raises(dist.InvalidArgument, match="extended_api"):
        make("wrong", lambda *_: LonelyGroup(), extended_api=True)
    make("wrong", lambda *_: torch.distributed.ProcessGroup(0, 1))
    with pytest.raises(TypeError, match="the backend 'wrong' made a ProcessGroup, not a gradwire ProcessGroup"):
        dist.make_process_group("wrong", dist.HashStore(), 0, 1)
    make("wrong", lambda *_: 1 // 0)  # the last function of a name counts
    with pytest.raises(ZeroDivisionError):
        dist.init_process_group("wrong", store=dist.HashStore(), rank=0, world_size=1)
    assert not dist.is_initialized()


def test_cpp_keeps_a_group_that_python_forgot_and_weak_references_follow():
    group = LonelyGroup()
    gone = weakref.ref(group)
    bucket_user = _C.hooks.make_allreduce_hook(group)
    del group
    gc.collect()
    assert gone() is not None and gone().name() == "lonely"
    del bucket_user
    gc.collect()
    assert gone() is None


def test_reduce_ops_are_values():
    op = dist.ReduceOp
    assert op.SUM == copy.deepcopy(op.SUM) == pickle.loads(pickle.dumps(op.SUM)) != op.MAX
    assert op.premul_sum(0.5) == pickle.loads(pickle.dumps(op.premul_sum(0.5))) != op.premul_sum(0.25)
    assert len({op.SUM, op.AVG, op.PRODUCT, op.MIN, op.MAX, op.BAND, op.BOR, op.BXOR}) == 8
    assert repr(op.SUM) == "ReduceOp.SUM" and op.BXOR.name == "BXOR"


def test_values_are_pickled_and_copied():
    from gradwire.distributed.algorithms.ddp_comm_hooks import DDPCommHookType, default_hooks
    from gradwire.nn.parallel import MixedPrecision

    options = dist.ReduceOptions()
    options.rootRank, options.reduceOp, options.timeout = 3, dist.ReduceOp.premul_sum(0.5), timedelta(seconds=7)
    for again in (pickle.loads(pickle.dumps(options)), copy.deepcopy(options), copy.copy(options)):
        assert again is not options and type(again) is dist.ReduceOptions
        assert (again.rootRank, again.reduceOp, again.timeout) == (3, options.reduceOp, options.timeout)
        assert (again.rootTensor, again.asyncOp) == (options.rootTensor, options.asyncOp)
    types = pickle.loads(pickle.dumps(MixedPrecision(param_dtype=torch.float16)))
    assert (types.param_dtype, types.reduce_dtype) == (torch.float16, None)
    for kind in DDPCommHookType:
        assert pickle.loads(pickle.dumps(kind)) is kind
    assert pickle.loads(pickle.dumps(default_hooks.allreduce_hook)) is default_hooks.allreduce_hook
    with pytest.raises(pickle.PicklingError, match="wrapped"):
        pickle.dumps(default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook))


def test_a_child_of_a_rank_that_is_a_thread_has_its_parents_place():
    """The child is forked by the thread that is the rank, as workers of a DataLoader are."""
    store = dist.HashStore()
    exits = [None] * 3
    all_forked = threading.Barrier(3)

    def rank_body(rank):
        dist.init_process_group("threads", store=store, rank=rank, world_size=3)
        all_forked.wait()
        child = os.fork()
        if child == 0:
            os._exit(10 + dist.get_rank() if dist.get_world_size() == 3 and dist.is_initialized() else 1)
        exits[rank] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        all_forked.wait()
        dist.destroy_process_group()

    threads = [threading.Thread(target=rank_body, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert exits == [10, 11, 12]


def test_what_a_build_has_is_told_apart_from_what_it_knows():
    """A program chooses "nccl" where is_nccl_available(), which says what the build has, as PyTorch's."""
    text = _C.installation_info()
    for name in dist.backend_names():
        assert dist.Backend(name.upper()) == name
        if f"backend {name}: usable" in text:
            assert dist.is_backend_available(name.upper())
        elif f"backend {name}: not usable: this gradwire was built without it" in text:
            assert not dist.is_backend_available(name)
    for name, is_available in (("gloo", dist.is_gloo_available), ("mpi", dist.is_mpi_available), ("nccl", dist.is_nccl_available)):
        assert is_available() == dist.is_backend_available(name)
    assert torch.distributed.is_nccl_available() or not dist.is_nccl_available()
    assert not dist.is_backend_available("pigeon") and dist.is_backend_available("auto")


def test_a_default_group_makes_groups_among_some_ranks_and_has_a_store_for_the_program():
    for error in (ValueError, AssertionError):  # what PyTorch's functions raise where there is no default group
        with pytest.raises(error, match="no default group"):
            dist.destroy_process_group()
    with pytest.raises(ValueError, match="no default group"):
        dist.distributed_c10d._get_default_store()
    assert not dist.is_ucc_available() and not dist.is_xccl_available()
    # The first two are for comparisons only.
    for name in (dist.Backend.UCC, dist.Backend.XCCL, None, 3, ["gloo"]):
        with pytest.raises(ValueError, match=re.escape(str(name))):
            dist.Backend(name)
    store, errors = dist.HashStore(), []

    def run(rank):
        try:
            dist.init_process_group("threads", store=store, rank=rank, world_size=3, timeout=timedelta(seconds=90))
            if rank != 1:  # which need not call
                mine = dist.new_group([2, 0], use_local_synchronization=True)
                assert dist.get_process_group_ranks(mine) == [0, 2] and dist.get_rank(mine) == rank // 2
                found = torch.full((1,), float(rank))
                dist.all_reduce(found, group=mine)
                assert found == 2
            else:
                assert dist.new_group([0], use_local_synchronization=True) == dist.GroupMember.NON_GROUP_MEMBER
            kept = dist.distributed_c10d._get_default_store()
            assert kept.timeout == timedelta(seconds=90)
            kept.set(f"key{rank}", str(rank))
            assert kept.get(f"key{(rank + 1) % 3}") == str((rank + 1) % 3).encode()
            dist.barrier()
            dist.destroy_process_group()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_a_groups_timeout_has_a_setter_and_a_receive_its_source(ranks):
    def body(group):
        group.set_timeout(timedelta(seconds=70))
        assert group.timeout == timedelta(seconds=70)
        if group.rank() == 1:
            return group.send([torch.ones(1)], 0).wait()
        work = group.recv_anysource([torch.zeros(1)])
        work.wait()
        assert work.source_rank() == work._source_rank() == 1
        return True

    assert ranks.all_well(2, body) == [True, True]


def test_names_of_backends_may_be_in_capital_letters():
    with pytest.raises(dist.InvalidArgument, match="thraeds"):
        dist.init_process_group("THRAEDS", store=dist.HashStore(), rank=0, world_size=1)
    dist.init_process_group("Threads", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert dist.get_backend() == "threads"
        assert dist.get_backend(dist.new_group(backend="THREADS")) == "threads"
        assert dist.get_backend(dist.split_group(split_ranks=[[0]], backend="THREADS")) == "threads"
        with pytest.raises(dist.InvalidArgument, match="SHM"):
            dist.split_group(split_ranks=[[0]], backend="SHM")
    finally:
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:.* is not part of the group")
def test_what_is_no_group_is_refused():
    dist.init_process_group("threads", store=dist.HashStore(), rank=0, world_size=1)
    try:
        tensor = torch.ones(2)
        calls = (
            lambda group: dist.all_reduce(tensor, group=group),
            lambda group: dist.broadcast(tensor, 0, group=group),
            lambda group: dist.all_gather_object([None], 1, group=group),
            lambda group: dist.barrier(group=group),
            lambda group: dist.get_rank(group),
            lambda group: dist.destroy_process_group(group),
        )
        for call in calls:
            for wrong in ("left", 5, True, object(), torch.distributed.group):
                with pytest.raises(TypeError, match="a gradwire ProcessGroup was expected, not "):
                    call(wrong)
            assert call(dist.GroupMember.NON_GROUP_MEMBER) in (None, -1)
            assert call(int("-100")) in (None, -1)  # another object of that value, as PyTorch's
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


def test_what_belongs_to_a_process_refuses_to_be_pickled(tmp_path):
    future = torch.futures.Future()
    future.set_result([])
    for value, why in (
        (dist.HashStore(), "a HashStore .* same arguments"),
        (dist.FileStore(str(tmp_path / "file"), 1), "a FileStore .* same arguments"),
        (DictStore(), "a DictStore .* same arguments"),
        (_C.ProcessGroup(0, 1), "init_process_group"),
        (LonelyGroup(), "a LonelyGroup .* init_process_group"),
        (dist._create_work_from_future(future), "call of this process"),
        (_C.hooks.make_noop_hook(), "state_dict"),
    ):
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=why):
                attempt(value)


def test_the_level_of_debugging_is_the_logs(capfd, monkeypatch):
    before = dist.get_debug_level()
    try:
        for level, lines in ((dist.DebugLevel.INFO, True), (dist.DebugLevel.OFF, False)):
            dist.set_debug_level(level)
            assert dist.get_debug_level() is level
            dist.make_process_group("threads", dist.HashStore(), 0, 1).shutdown()
            assert ("backend threads" in capfd.readouterr().err) == lines
        monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "detail")
        dist.set_debug_level_from_env()
        assert dist.get_debug_level() is dist.DebugLevel.DETAIL
        monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "all")
        for kind in (ValueError, RuntimeError):  # the second is PyTorch's
            with pytest.raises(kind, match="OFF, INFO, DETAIL"):
                dist.set_debug_level_from_env()
    finally:
        dist.set_debug_level(before)
