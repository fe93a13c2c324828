# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Hooks that are Python callables, with ranks as threads."""
import gc
import threading
import traceback
import typing

import pytest
import torch
from torch import nn

import gradwire
from gradwire import distributed as dist
from gradwire.distributed.algorithms.ddp_comm_hooks import default_hooks
from gradwire.distributed.algorithms.join import Join
from gradwire.nn.parallel import DistributedDataParallel

from ddp_model import SIZE, assert_averages, batch_of, gradients, make_model


@pytest.mark.parametrize("lanes", [0, 1])
def test_a_python_hook_of_several_stages(ranks, lanes):
    def hook(state, bucket):
        group, order = state["group"], state["order"]
        order.append((bucket.iteration, bucket.index(), bucket.is_last()))
        scale = bucket.buffer().abs().max()
        dist.all_reduce(scale, dist.ReduceOp.MAX, group)
        future = group.allreduce([bucket.buffer().div_(scale)]).get_future()
        return future.then(lambda done: done.value()[0] * scale / bucket.divisor)

    def body(group):
        ddp = DistributedDataParallel(make_model(), process_group=group, bucket_cap_mb=0.0005, lanes=lanes)
        state = {"group": group, "order": []}
        ddp.register_comm_hook(state, hook)
        result = gradients(ddp, group)
        count = len(ddp._core.bucket_plan())
        last = [entry for entry in state["order"] if entry[0] == 2]
        assert last == [(2, index, index == count - 1) for index in range(count)] and count > 1
        return result

    assert_averages(ranks.all_well(SIZE, body))


class Sometimes(nn.Module):
    """The gradient of each parameter is factor(); `w` is used in even steps alone."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(16))
        self.v = nn.Parameter(torch.zeros(16))

    @staticmethod
    def factor(rank: int, step: int) -> torch.Tensor:
        return torch.randn(16, generator=torch.Generator().manual_seed(1000 * rank + step))

    def forward(self, rank: int, step: int) -> torch.Tensor:
        loss = (self.v * self.factor(rank, 500 + step)).sum()
        return loss + (self.w * self.factor(rank, step)).sum() if step % 2 == 0 else loss


class Rest:
    """What largest_quarter() has not sent, by the name of the parameter."""

    def __init__(self) -> None:
        self.rest: dict[str, torch.Tensor] = {}
        self.held: dict[str, torch.Tensor] = {}
        self.absent: list[list[str]] = []
        self.calls: list[typing.Any] = []

    def revert_unused(self, names: list[str]) -> None:
        self.calls.append(names)
        for name in names:
            self.rest[name] = self.held[name]

    def end_iteration(self) -> None:
        self.calls.append("end")
        self.held.clear()


def largest_quarter(state: Rest, bucket: dist.GradBucket) -> torch.Tensor:
    names, gradients = bucket.parameter_names(), bucket.gradients()
    state.absent.append([names[place] for place in bucket.absent()])
    for name in state.absent[-1]:
        state.held[name] = state.rest.get(name, torch.zeros(16))
    for name, gradient in zip(names, gradients, strict=True):
        gradient += state.rest.get(name, 0)
    sent = torch.zeros_like(bucket.buffer())
    places = bucket.buffer().abs().topk(bucket.buffer().numel() // 4).indices
    sent[places] = bucket.buffer()[places]
    bucket.buffer().sub_(sent)
    for name, gradient in zip(names, gradients, strict=True):
        state.rest[name] = gradient.clone()
    dist.all_reduce(sent, group=bucket.group)
    return sent.div_(bucket.divisor)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("lanes", [0, 1])
def test_a_python_hook_that_remembers_loses_nothing_of_unused_parameters(ranks, lanes, wrapped):
    steps = 10

    def body(group):
        ddp = DistributedDataParallel(Sometimes(), process_group=group, find_unused_parameters=True, lanes=lanes)
        rest = Rest()
        ddp.register_comm_hook(*(gradwire.hooks.checking(rest, largest_quarter) if wrapped else (rest, largest_quarter)))
        applied = torch.zeros(16)
        for step in range(steps):
            ddp.zero_grad()
            ddp(group.rank(), step).backward()
            assert (ddp.module.w.grad is not None) == (step % 2 == 0)
            applied += ddp.module.w.grad if step % 2 == 0 else 0
        assert rest.absent == [[], ["w"]] * (steps // 2)
        assert rest.calls == ["end", ["w"], "end"] * (steps // 2) and not rest.held
        owed = rest.rest["w"].clone()
        dist.all_reduce(owed, group=group)
        wanted = sum(Sometimes.factor(rank, step) for rank in range(SIZE) for step in range(0, steps, 2)) / SIZE
        torch.testing.assert_close(applied + owed / SIZE, wanted, rtol=0, atol=1e-5)

    ranks.all_well(SIZE, body)


class Saved(Rest):
    """Returns the tensors that it goes on with, as a module's state_dict() does."""

    def state_dict(self) -> dict[str, typing.Any]:
        return {"steps": len(self.calls), **{f"local/rest/{name}": rest for name, rest in self.rest.items()}}

    def load_state_dict(self, state: dict[str, typing.Any]) -> None:
        self.calls = ["loaded"] * state["steps"]
        self.rest = {key.removeprefix("local/rest/"): rest for key, rest in state.items() if key != "steps"}


def test_the_state_of_a_python_hook_is_kept_and_brought_back(ranks):
    def body(group):
        ddp = DistributedDataParallel(make_model(), process_group=group)
        state = Saved()
        ddp.register_comm_hook(state, add_up)
        hook = ddp._hook
        gradients(ddp, group, steps=2)
        kept = hook.state_dict()
        assert kept["steps"] == 2
        before = {name: rest.clone() for name, rest in state.rest.items()}
        for _ in range(2):  # as often as a step of an elastic job fails
            gradients(ddp, group, steps=1)
            assert not torch.equal(state.rest["0.weight"], before["0.weight"])
            hook.load_state_dict(kept)
            assert state.calls == ["loaded"] * 2
            assert all(torch.equal(state.rest[name], before[name]) for name in before)

    ranks.all_well(SIZE, body)


def add_up(state: Saved, bucket: dist.GradBucket) -> torch.Tensor:
    dist.all_reduce(bucket.buffer(), group=bucket.group)
    for name, gradient in zip(bucket.parameter_names(), bucket.gradients(), strict=True):
        state.rest.setdefault(name, torch.zeros_like(gradient)).add_(gradient)
    return bucket.buffer().div_(bucket.divisor)


@pytest.mark.parametrize(
    ("returned", "message"),
    [([1], "returned no dict"), ({1: 2}, "has the key 1"), ({"a": {"b": 1}}, "something else under 'a'"), ({"a": [1, {}]}, "under 'a'")],
)
def test_a_state_of_a_hook_that_cannot_be_kept_is_refused(ranks, returned, message):
    class Wrong(Saved):
        def state_dict(self):
            return returned

    def body(group):
        ddp = DistributedDataParallel(make_model(), process_group=group)
        ddp.register_comm_hook(Wrong(), add_up)
        with pytest.raises(dist.InvalidArgument, match=message):
            ddp._hook.state_dict()

    ranks.all_well(1, body)


@pytest.mark.parametrize("method", ["revert_unused", "end_iteration"])
def test_an_exception_of_a_method_of_a_hooks_state_is_raised_by_backward(ranks, method):
    class Fails(Rest):
        pass

    def fail(self, *names):
        raise KeyError("the reason")

    setattr(Fails, method, fail)

    def body(group):
        ddp = DistributedDataParallel(Sometimes(), process_group=group, find_unused_parameters=True)
        ddp.register_comm_hook(Fails(), largest_quarter)
        with pytest.raises((KeyError, dist.PeerError), match="the reason"):
            ddp(group.rank(), 1).backward()

    ranks.all_well(SIZE, body)


@pytest.mark.parametrize("waits", [False, True])
def test_an_error_of_another_rank_keeps_its_kind_in_the_future_of_a_hook(ranks, waits):
    def body(group):
        def hook(_, bucket):
            if group.rank() == 1:
                raise KeyError("the reason")
            future = dist.all_reduce(bucket.buffer(), async_op=True, group=bucket.group).get_future()
            if waits:
                future.wait()
            return future.then(lambda ended: ended.value()[0])

        ddp = DistributedDataParallel(make_model(), process_group=group)
        ddp.register_comm_hook(None, hook)
        with pytest.raises(KeyError if group.rank() == 1 else dist.PeerError, match="the reason") as raised:
            ddp(batch_of(group.rank())).sum().backward()
        if group.rank() != 1:
            assert raised.value.peers == [1]

    ranks.all_well(SIZE, body)


def test_a_bucket_says_that_its_rank_has_joined(ranks):
    def body(group):
        ddp = DistributedDataParallel(make_model(), process_group=group)
        joined = []

        def hook(_, bucket):
            joined.append(bucket.joined)
            return default_hooks.allreduce_hook(None, bucket)

        ddp.register_comm_hook(None, hook)
        with Join([ddp]):
            for _ in range(1 + group.rank()):
                ddp(batch_of(group.rank())).sum().backward()
        assert joined == [False, group.rank() == 0]

    ranks.all_well(SIZE, body)


def test_a_bucket_that_outlives_its_group_refuses_to_communicate(ranks):
    def body(group):
        kept = []

        def keep(_, bucket):
            kept.append(bucket)
            assert bucket.group.size() == SIZE
            return default_hooks.allreduce_hook(None, bucket)

        ddp = DistributedDataParallel(make_model(), process_group=group.dup())
        ddp.register_comm_hook(None, keep)
        gradients(ddp, group, 1)
        del ddp
        gc.collect()
        assert kept[0].buffer().numel() > 0 and kept[0].divisor == SIZE
        with pytest.raises(ValueError, match="bucket 0 has gone"):
            kept[0].group  # noqa: B018
        with pytest.raises(ValueError, match="bucket 0 has gone"):
            default_hooks.allreduce_hook(None, kept[0])

    ranks.all_well(SIZE, body)


def test_a_hook_may_return_the_tensor_and_use_any_names_of_arguments(ranks):
    def body(group):
        ddp = DistributedDataParallel(make_model(), process_group=group)

        def average(_, whatever):
            dist.all_reduce(whatever.buffer(), group=whatever.group)
            return whatever.buffer().div_(whatever.divisor)

        ddp.register_comm_hook(None, average)
        return gradients(ddp, group)

    assert_averages(ranks.all_well(SIZE, body))


def test_a_hook_whose_annotations_name_other_types_is_refused(ranks):
    def of_a_number(state, bucket: int):
        pass

    def gives_a_number(state, bucket) -> int:
        pass

    def as_pytorchs(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return default_hooks.allreduce_hook(None, bucket)

    def in_words(state: "object", bucket: "dist.GradBucket") -> "torch.Tensor":
        return default_hooks.allreduce_hook(None, bucket)

    def loose(state, bucket: object) -> object:
        return default_hooks.allreduce_hook(None, bucket)

    def of_anything(state: typing.Any, bucket: typing.Any) -> typing.Any:
        return default_hooks.allreduce_hook(None, bucket)

    def with_options(*arguments, level: int = 1):
        return default_hooks.allreduce_hook(None, arguments[1])

    class BucketLike(typing.Protocol):
        def buffer(self) -> torch.Tensor: ...

    def of_a_protocol(state, bucket: BucketLike):
        return default_hooks.allreduce_hook(None, bucket)

    def body(group):
        ddp = DistributedDataParallel(make_model(), process_group=group)
        with pytest.raises(ValueError, match="'bucket' is annotated as int"):
            ddp.register_comm_hook(None, of_a_number)
        with pytest.raises(ValueError, match="returning int"):
            ddp.register_comm_hook(None, gives_a_number)
        found = []
        for hook in (as_pytorchs, in_words, loose, of_anything, with_options, of_a_protocol):
            ddp = DistributedDataParallel(make_model(), process_group=group)
            ddp.register_comm_hook(None, hook)
            found.append(gradients(ddp, group, 1))
        return found[-1]

    assert_averages(ranks.all_well(SIZE, body))


def test_hooks_of_the_package_inside_a_users_hook(ranks):
    def body(group):
        ddp = DistributedDataParallel(make_model(), process_group=group)
        ddp.register_comm_hook(group, lambda state, bucket: default_hooks.fp16_compress_hook(state, bucket))
        return gradients(ddp, group)

    assert_averages(ranks.all_well(SIZE, body), rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("lanes", [0, 1])
def test_an_exception_that_a_hook_sets_on_its_future_is_raised_by_backward(ranks, lanes, later):
    setters = []

    def hook(state, bucket):
        future = torch.futures.Future()
        if later:
            setters.append(threading.Timer(0.05, future.set_exception, [ValueError("my own words")]))
            setters[-1].start()
        else:
            future.set_exception(ValueError("my own words"))
        return future

    def body(group):
        ddp = DistributedDataParallel(make_model(), process_group=group, lanes=lanes)
        ddp.register_comm_hook(None, hook)
        with pytest.raises(ValueError, match="my own words"):
            gradients(ddp, group)
        # It is quoted, on one line: a program that catches its own exceptions must not take the old one for a new one.
        with pytest.raises(dist.AbortedError, match=r"an earlier pass failed \(error: ValueError: my own words\), and"):
            ddp(batch_of(0))

    ranks.all_well(1, body)
    for setter in setters:
        setter.join()


def test_what_a_hook_returns_in_place_of_a_future_is_refused_with_one_type_of_error(ranks):
    def body(group):
        ddp = DistributedDataParallel(make_model(), process_group=group)
        ddp.register_comm_hook(None, lambda state, bucket: None)
        for kind in (TypeError, dist.AbortedError):
            with pytest.raises(kind, match="a torch.futures.Future was expected, not a NoneType"):
                gradients(ddp, group)

    ranks.all_well(1, body)


@pytest.mark.parametrize("lanes", [0, 1])
def test_an_exception_of_a_python_hook_ends_all_ranks_with_its_traceback(ranks, lanes):
    def body(group):
        ddp = DistributedDataParallel(make_model(), process_group=group, lanes=lanes)

        def hook_that_fails(state, bucket):
            if group.rank() == 1:
                raise KeyError("the reason")
            return default_hooks.allreduce_hook(None, bucket)

        ddp.register_comm_hook(None, hook_that_fails)
        try:
            ddp(batch_of(group.rank())).sum().backward()
        except Exception as error:
            with pytest.raises(Exception):
                ddp(batch_of(0))  # and it stays at its end
            raise error

    ranks(SIZE, body)
    first, second = ranks.errors
    assert isinstance(second, KeyError) and "hook_that_fails" in "".join(traceback.format_exception(second))
    assert isinstance(first, dist.PeerError), repr(first)
    assert "rank 1" in str(first) and "the reason" in str(first)


@pytest.mark.parametrize("lanes", [0, 1])
def test_a_hook_over_a_subgroup_names_ranks_of_the_default_group(ranks, lanes):
    store = dist.HashStore()

    def body(group):
        rank = group.rank()
        dist.init_process_group("threads", store=store, rank=rank, world_size=3)
        subgroup = dist.new_group([1, 2])
        seen = []

        def hook(state, bucket):
            number = torch.tensor([float(rank)])
            dist.broadcast(number, src=1, group=bucket.group)
            seen.append((number.item(), dist.get_process_group_ranks(bucket.group)))
            dist.all_reduce(bucket.buffer(), group=bucket.group)
            return bucket.buffer() / bucket.divisor

        if rank > 0:
            ddp = DistributedDataParallel(make_model(), process_group=subgroup, lanes=lanes)
            ddp.register_comm_hook(None, hook)
            ddp(batch_of(rank)).square().sum().backward()
            assert seen and all(each == (1.0, [1, 2]) for each in seen)
        dist.destroy_process_group()

    ranks.all_well(3, body)


def test_a_hook_may_ask_its_ddp(ranks):
    def body(group):
        ddp = DistributedDataParallel(make_model(), process_group=group)
        told = []

        def hook(state, bucket):
            told.append((ddp._get_ddp_logging_data()["iteration"], ddp.payload_bytes() >= 0, len(ddp.bucket_order()) >= 0,
                         len(ddp._core.bucket_plan()) > 0, bucket.iteration))
            with pytest.raises(dist.InvalidArgument):
                ddp.register_comm_hook(None, hook)
            dist.all_reduce(bucket.buffer(), group=bucket.group)
            return bucket.buffer() / bucket.divisor

        ddp.register_comm_hook(None, hook)
        result = gradients(ddp, group)
        assert [each[0] for each in told] == [each[-1] for each in told] and len(told) >= 3
        return result

    assert_averages(ranks.all_well(SIZE, body))
