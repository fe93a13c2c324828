# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel and its hooks, with ranks as threads."""
import collections
import dataclasses
import enum
import gc
import os
import pathlib
import pickle
import subprocess
import sys
import threading
import traceback
import typing

import pytest
import torch
import torch.distributed.optim
import torch.utils.checkpoint
from torch import nn

import gradwire
from gradwire import distributed as dist
from gradwire.distributed.algorithms import ddp_comm_hooks
from gradwire.distributed.algorithms.ddp_comm_hooks import DDPCommHookType, register_ddp_comm_hook
from gradwire.distributed.algorithms.ddp_comm_hooks import default_hooks, optimizer_overlap_hooks, powerSGD_hook
from gradwire.distributed.algorithms.join import Join
from gradwire.nn.parallel import DistributedDataParallel, MixedPrecision
from gradwire.nn.parallel._nested import moved_to

SIZE = 2
BUILD = pathlib.Path(os.environ.get("GRADWIRE_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))


# Ranks are threads, and share torch's generator.
_seeded = threading.Lock()


def make_model(seed: int = 0) -> nn.Module:
    with _seeded:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))


def batch_of(rank: int) -> torch.Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(100 + rank))


def mean_gradients() -> list[torch.Tensor]:
    """What one process computes for the mean of all ranks' losses."""
    model = make_model()
    (sum(model(batch_of(rank)).square().sum() for rank in range(SIZE)) / SIZE).backward()
    return [parameter.grad for parameter in model.parameters()]


def gradients(ddp: nn.Module, group: dist.ProcessGroup, steps: int = 3) -> list[torch.Tensor]:
    for _ in range(steps):
        ddp.zero_grad()
        ddp(batch_of(group.rank())).square().sum().backward()
    return [parameter.grad.clone() for parameter in ddp.parameters()]


def assert_all_equal(results):
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def assert_averages(results, rtol=1e-5, atol=1e-6):
    assert_all_equal(results)
    for got, wanted in zip(results[0], mean_gradients(), strict=True):
        torch.testing.assert_close(got, wanted, rtol=rtol, atol=atol)


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("lanes", [0, 1, 2])
def test_gradients_are_averages(ranks, view, lanes):
    def body(group):
        ddp = DistributedDataParallel(make_model(group.rank()), process_group=group, bucket_cap_mb=0.0005,
                                      gradient_as_bucket_view=view, lanes=lanes)
        result = gradients(ddp, group)
        assert len(ddp._core.bucket_plan()) > 1 and ddp._get_ddp_logging_data()["iteration"] == 3
        return result

    assert_averages(ranks.all_well(SIZE, body))


def test_optimizers_in_the_backward_pass_that_would_step_before_the_average_are_refused(ranks):
    def body(group):
        model = make_model()
        ddp = DistributedDataParallel(model, process_group=group)
        torch.distributed.optim._apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1})
        with pytest.raises(dist.UnsupportedError, match="hook_then_optimizer"):
            ddp(batch_of(group.rank()))
        with pytest.raises(dist.UnsupportedError, match="hook_then_optimizer"), Join([ddp]):
            pass

    ranks.all_well(SIZE, body)


@pytest.mark.parametrize("change", ["assign", "add", "replace", "module"])
def test_a_parameter_that_was_replaced_or_added_is_refused(ranks, change):
    def body(group):
        ddp = DistributedDataParallel(make_model(), process_group=group)
        gradients(ddp, group)
        if change == "assign":
            ddp.module.load_state_dict({k: v.clone() for k, v in ddp.module.state_dict().items()}, assign=True)
        elif change == "add":
            ddp.module.append(nn.Linear(3, 3))
        elif change == "replace":
            ddp.module[2] = nn.Linear(16, 16)
        else:
            ddp.module = make_model()
        with ddp.no_sync():
            ddp(batch_of(group.rank()))  # local: nothing would be averaged
        with torch.no_grad():
            ddp(batch_of(group.rank()))
        with pytest.raises(dist.InvalidArgument, match="was replaced or added"):
            ddp(batch_of(group.rank()))

    ranks.all_well(SIZE, body)


def test_an_adapter_that_is_added_frozen_is_refused_when_it_is_to_learn(ranks):
    def body(group):
        ddp = DistributedDataParallel(make_model(), process_group=group)
        ddp.module.append(nn.Linear(3, 3).requires_grad_(False))
        ddp(batch_of(group.rank())).sum().backward()
        ddp.module[5].requires_grad_(True)
        with pytest.raises(dist.InvalidArgument, match="'5.weight' .* was replaced or added"):
            ddp(batch_of(group.rank()))

    ranks.all_well(SIZE, body)


def test_changes_of_the_module_that_touch_no_parameter_are_taken(ranks):
    def body(group):
        ddp = DistributedDataParallel(make_model(), process_group=group)
        ddp.module.append(nn.Identity())
        ddp.module[1] = nn.Tanh()
        ddp.module.load_state_dict(make_model().state_dict())
        values = {name: value.detach().clone().requires_grad_() for name, value in ddp.named_parameters()}
        torch.func.functional_call(ddp, values, (batch_of(group.rank()),)).sum().backward()
        return gradients(ddp, group)

    assert_averages(ranks.all_well(SIZE, body))


class CheckpointedTwice(nn.Module):
    """A block with all that is trained, which two re-entrant checkpoints use: its gradients are complete twice."""

    def __init__(self):
        super().__init__()
        self.block = make_model()

    def forward(self, x):
        x = x.clone().requires_grad_()
        for _ in range(2):
            x = nn.functional.pad(torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=True), (0, 3))
        return x


@pytest.mark.parametrize("cap", [25, 0.0005])
def test_a_second_gradient_from_a_reentrant_checkpoint_is_refused_or_averaged(cap):
    """With a process a rank: autograd has one thread a device for re-entrant passes."""
    program = f"""
import torch
from gradwire import distributed as dist
from gradwire.nn.parallel import DistributedDataParallel
from test_ddp import CheckpointedTwice, batch_of
dist.init_process_group()
rank = dist.get_rank()
wanted = CheckpointedTwice()
(sum(wanted(batch_of(each)).square().sum() for each in range(2)) / 2).backward()
ddp = DistributedDataParallel(CheckpointedTwice(), static_graph=True, bucket_cap_mb={cap})
for step in range(3):
    ddp.zero_grad()
    ddp(batch_of(rank)).square().sum().backward()
    for got, want in zip(ddp.parameters(), wanted.parameters()):
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-4, atol=1e-5)
ddp = DistributedDataParallel(CheckpointedTwice(), bucket_cap_mb={cap})
try:
    ddp(batch_of(rank)).square().sum().backward()
except dist.DistError as error:  # in the words of the other rank, where that was first
    assert "second gradient" in str(error), error
    print("refused")
"""
    result = subprocess.run([BUILD / "bin" / "gradwire-run", "-n", "2", sys.executable, "-c", program], capture_output=True,
                            text=True, timeout=120, cwd=pathlib.Path(__file__).parent)
    assert result.stdout.count("refused") == 2, result.stdout + result.stderr


def test_lazy_modules_and_synchronized_norms_are_refused(ranks):
    def body(group):
        with pytest.raises(dist.InvalidArgument, match="'0.weight' has no shape yet"):
            DistributedDataParallel(nn.Sequential(nn.LazyLinear(3)), process_group=group)
        with pytest.raises(dist.UnsupportedError, match="'1' is a torch.nn.SyncBatchNorm"):
            DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), nn.SyncBatchNorm(3)), process_group=group)
        DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), nn.SyncBatchNorm(3).eval()), process_group=group)

    ranks.all_well(SIZE, body)


@dataclasses.dataclass(frozen=True)
class Inputs:
    x: torch.Tensor
    name: str = "inputs"


class Attributes(dict):
    def __init__(self, **items):
        super().__init__(**items)
        self.__dict__ = self


@pytest.mark.parametrize("make, get", [
    (Inputs, lambda inputs: inputs.x),
    (lambda x: Attributes(x=x), lambda inputs: inputs.x),
    (lambda x: collections.defaultdict(list, x=[x]), lambda inputs: inputs["x"][0]),
    (lambda x: collections.OrderedDict(x=(x, 1)), lambda inputs: inputs["x"][0]),
], ids=["dataclass", "attributes", "defaultdict", "OrderedDict"])
def test_inputs_in_containers_are_cast_and_stay_what_they_are(ranks, make, get):
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 2)

        def forward(self, inputs):
            self.seen = inputs
            return self.linear(get(inputs))

    def body(group):
        precision = MixedPrecision(torch.bfloat16, torch.float32, None)
        ddp = DistributedDataParallel(Reads(), process_group=group, mixed_precision=precision)
        given = make(batch_of(0))
        ddp(given).sum().backward()
        assert get(given).dtype == torch.float32 and get(ddp.module.seen).dtype == torch.bfloat16
        assert type(ddp.module.seen) is type(given)
        plain = type(given)() if isinstance(given, (Attributes, collections.OrderedDict)) else Inputs("no tensor")
        assert moved_to(plain, torch.Tensor.double) is plain, "forward() may write to it for its caller"

    ranks.all_well(SIZE, body)


def test_the_batch_sizes_of_a_packed_sequence_stay_on_the_cpu():
    packed = nn.utils.rnn.pack_padded_sequence(torch.ones(3, 2, 4), torch.tensor([1, 3]), enforce_sorted=False)
    moved = moved_to(packed, lambda tensor: tensor.to("meta"))
    assert type(moved) is type(packed) and moved.batch_sizes is packed.batch_sizes
    assert {moved.data.device.type, moved.sorted_indices.device.type, moved.unsorted_indices.device.type} == {"meta"}


@pytest.mark.parametrize("kind", list(DDPCommHookType))
def test_every_type_of_hook_registers_and_keeps_ranks_alike(ranks, kind):
    def body(group):
        ddp = DistributedDataParallel(make_model(), process_group=group, bucket_cap_mb=0.0005)
        register_ddp_comm_hook(kind, ddp, group)
        return gradients(ddp, group)

    results = ranks.all_well(SIZE, body)
    if kind is not DDPCommHookType.NOOP:
        assert_averages(results, rtol=0.02, atol=0.15)


def test_the_types_are_an_enum_with_callable_values():
    assert issubclass(DDPCommHookType, enum.Enum) and len(DDPCommHookType) == 10
    assert len({kind.value for kind in DDPCommHookType}) == 10 and all(callable(kind.value) for kind in DDPCommHookType)


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


def test_many_are_made_and_dropped_on_several_threads_at_once(ranks):
    def body(group):
        for _ in range(60):
            DistributedDataParallel(nn.Linear(2, 2), process_group=group)

    ranks.all_well(3, body)


def test_differing_modules_are_refused_on_all_ranks(ranks):
    def body(group):
        DistributedDataParallel(nn.Linear(3, 4 + group.rank()), process_group=group)

    ranks(SIZE, body)
    assert all(isinstance(error, dist.MismatchError) for error in ranks.errors)


def test_no_sync_accumulates_locally(ranks):
    def body(group):
        ddp = DistributedDataParallel(make_model(), process_group=group)
        with ddp.no_sync():
            ddp(batch_of(group.rank())).square().sum().backward()
        local = make_model()
        local(batch_of(group.rank())).square().sum().backward()
        for got, wanted in zip(ddp.parameters(), local.parameters(), strict=True):
            assert torch.equal(got.grad, wanted.grad)
        ddp(batch_of(group.rank())).square().sum().backward()
        return [parameter.grad / 2 for parameter in ddp.parameters()]

    assert_averages(ranks.all_well(SIZE, body))


def test_unused_parameters_and_nested_outputs(ranks):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.never = nn.Linear(6, 2), nn.Linear(6, 2), nn.Linear(6, 2)

        def forward(self, x, *, use_b):
            out = self.b(x) if use_b else self.a(x)
            return {"nested": [(out,)]}

    def body(group):
        torch.manual_seed(0)
        ddp = DistributedDataParallel(Two(), process_group=group, find_unused_parameters=True)
        for _ in range(2):
            ddp.zero_grad()
            ddp(batch_of(0), use_b=group.rank() == 1)["nested"][0][0].sum().backward()
        assert ddp.module.never.weight.grad is None
        return [ddp.module.a.weight.grad, ddp.module.b.weight.grad]

    results = ranks.all_well(SIZE, body)
    assert_all_equal(results)
    torch.testing.assert_close(results[0][0], batch_of(0).sum(0).expand(2, 6) / SIZE)


def test_buffers_follow_rank_0(ranks):
    def body(group):
        ddp = DistributedDataParallel(nn.BatchNorm1d(6), process_group=group)
        ddp(batch_of(group.rank())).sum().backward()
        ddp(batch_of(group.rank())).sum().backward()
        ddp.eval()
        before = ddp.module.running_mean.clone()
        ddp(batch_of(0))
        assert torch.equal(before, ddp.module.running_mean)
        return ddp.module.num_batches_tracked.clone()

    results = ranks.all_well(SIZE, body)
    assert results[0] == results[1] == 2


class Counts(nn.Module):
    """A module that makes a new tensor of its buffer in each forward."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 2)
        self.inner = nn.Module()
        self.inner.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        return self.layer(x) + self.inner.seen


def test_a_buffer_that_the_program_replaces_follows_rank_0(ranks):
    def body(group):
        ddp = DistributedDataParallel(Counts(), process_group=group)
        got = []
        for _ in range(3):
            if group.rank() == 0:
                ddp.module.inner.seen = ddp.module.inner.seen + 1
            ddp(batch_of(0)).sum().backward()
            got.append(ddp.module.inner.seen.item())
        return got

    assert ranks.all_well(SIZE, body) == [[1, 2, 3]] * SIZE


def test_a_buffer_that_the_program_adds_follows_rank_0(ranks):
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 1)

        def forward(self, x):
            return self.layer(x)

    def body(group):
        ddp = DistributedDataParallel(Plain(), process_group=group)
        ddp(batch_of(0)).sum().backward()
        ddp.module.register_buffer("seen", torch.tensor(float(group.rank() + 5)))
        ddp(batch_of(0)).sum().backward()
        return ddp.module.seen.item()

    assert ranks.all_well(SIZE, body) == [5.0] * SIZE


@pytest.mark.parametrize("arguments, at_construction, in_forward", [
    ({}, True, True), ({"broadcast_buffers": False}, False, False), ({"forward_sync_buffers": False}, True, False),
    ({"broadcast_buffers": False, "forward_sync_buffers": True}, True, True),
    ({"broadcast_buffers": True, "forward_sync_buffers": False}, True, False),
    ({"forward_sync_buffers": False, "init_sync": False}, False, False)])
def test_when_buffers_travel(ranks, arguments, at_construction, in_forward):
    def body(group):
        module = nn.BatchNorm1d(6)
        module.running_mean.fill_(group.rank() + 1.0)
        ddp = DistributedDataParallel(module, process_group=group, **arguments)
        assert (module.running_mean[0].item() == 1) == (at_construction or group.rank() == 0)
        module.running_mean.fill_(group.rank() + 1.0)
        ddp(torch.zeros(2, 6)).sum().backward()
        assert (module.running_mean[0].item() == pytest.approx(0.9)) == (in_forward or group.rank() == 0)
        assert ddp.broadcast_buffers == ddp.forward_sync_buffers == in_forward

    ranks.all_well(SIZE, body)


@pytest.mark.parametrize("name", ["broadcast_buffers", "forward_sync_buffers", "require_forward_param_sync"])
@pytest.mark.parametrize("replaces_core", [False, True])
def test_buffers_can_be_kept_from_travelling_later(ranks, name, replaces_core):
    """As programs for PyTorch's DDP do, which reads these attributes at each forward."""
    def body(group):
        module = nn.BatchNorm1d(6)
        ddp = DistributedDataParallel(module, process_group=group)
        for travels in (False, True):
            setattr(ddp, name, travels)
            if replaces_core and not travels:
                ddp._set_static_graph()
            assert getattr(ddp, name) is travels
            assert ddp.broadcast_buffers == ddp.forward_sync_buffers
            module.running_mean.fill_(group.rank() + 1.0)
            ddp(torch.zeros(2, 6)).sum().backward()
            rank = 0 if travels else group.rank()
            assert module.running_mean[0].item() == pytest.approx(0.9 * (rank + 1))
            assert ddp.require_forward_param_sync
        with ddp.no_sync():
            ddp(torch.zeros(2, 6)).sum().backward()
        assert not ddp.require_forward_param_sync

    ranks.all_well(SIZE, body)


def test_synchronization_can_be_switched_off_by_the_property(ranks):
    def body(group):
        ddp = DistributedDataParallel(make_model(), process_group=group)
        assert ddp.require_backward_grad_sync
        ddp.require_backward_grad_sync = False
        ddp(batch_of(group.rank())).square().sum().backward()
        with ddp.no_sync():
            ddp(batch_of(group.rank())).square().sum().backward()
        assert not ddp.require_backward_grad_sync
        local = make_model()
        local(batch_of(group.rank())).square().sum().backward()
        for got, wanted in zip(ddp.parameters(), local.parameters(), strict=True):
            torch.testing.assert_close(got.grad, 2 * wanted.grad)
        ddp.zero_grad()
        ddp.require_backward_grad_sync = True
        return gradients(ddp, group, steps=1)

    assert_all_equal(ranks.all_well(SIZE, body))


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


def test_gradients_after_a_join_are_those_of_the_ranks_own_backward_pass(ranks):
    def body(group):
        ddp = DistributedDataParallel(nn.Linear(1, 1, bias=False), process_group=group)
        seen = []
        for _ in range(2):
            with ddp.join():
                for _ in range(1 + group.rank()):
                    ddp(torch.full((1, 1), 10.0)).sum().backward()
                    seen.append(ddp.module.weight.grad.item())
                    ddp.zero_grad()
        return seen

    assert ranks.all_well(SIZE, body) == [[10.0] * 2, [10.0, 5.0] * 2]


def test_an_output_that_the_loss_does_not_use(ranks):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)

        def forward(self, x):
            return self.a(x), self.b(x)

    def body(group):
        ddp = DistributedDataParallel(Two(), process_group=group, find_unused_parameters=True)
        for _ in range(3):
            ddp.zero_grad()
            ddp(torch.full((1, 1), 1.0 + group.rank()))[1].sum().backward()
            assert ddp.module.b.weight.grad.item() == 1.5 and ddp.module.a.weight.grad in (None, 0.0)

    ranks.all_well(SIZE, body)


def test_hooks_by_name_checked_logged_and_saved(ranks):
    def body(group):
        records = []
        ddp = DistributedDataParallel(make_model(), process_group=group)
        state, hook = gradwire.hooks.make("top_k:ratio=0.5,memory=ef21")
        memory = state
        state, hook = gradwire.hooks.checking(state, hook)
        ddp.register_comm_hook(*gradwire.hooks.logging(state, hook, records.append))
        gradients(ddp, group)
        assert [record["iteration"] for record in records] == [0, 1, 2] and records[0]["norm_after"] > 0
        saved = pickle.loads(pickle.dumps(memory.state_dict()))
        again, _ = gradwire.hooks.make("top_k:ratio=0.5,memory=ef21")
        again.load_state_dict(saved)
        for key, value in again.state_dict().items():
            assert torch.equal(value, saved[key]) if isinstance(value, torch.Tensor) else value == saved[key]
        with pytest.raises(dist.InvalidArgument, match="fp16_compress"):
            gradwire.hooks.make("no_such_hook")

    ranks.all_well(SIZE, body)


@pytest.mark.parametrize("unused", [False, True])  # where DDP learns no order
def test_a_run_under_a_compressor_goes_on_with_the_same_bits(ranks, unused):
    def body(group):
        def wrapped():
            # Buckets of 1 KB: which parameters share one depends on the order.
            ddp = DistributedDataParallel(
                make_model(), process_group=group, find_unused_parameters=unused, bucket_cap_mb=0.001)
            memory, hook = gradwire.hooks.make("top_k:ratio=0.3,memory=error_feedback")
            ddp.register_comm_hook(memory, hook)
            return ddp, memory

        whole, memory = wrapped()
        gradients(whole, group)
        saved = pickle.loads(pickle.dumps((memory.state_dict(), whole.bucket_order())))
        assert bool(saved[1]) != unused
        resumed, memory = wrapped()
        memory.load_state_dict(saved[0])
        resumed.set_bucket_order(saved[1])
        return gradients(whole, group), gradients(resumed, group)

    for uninterrupted, continued in ranks.all_well(SIZE, body):
        assert_all_equal([uninterrupted, continued])


@pytest.mark.parametrize("wrap", ["", "wrap=bf16"])
def test_every_hook_averages_complex_gradients_exactly(ranks, wrap):
    class Complex(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(16, 8, dtype=torch.complex64))

        def forward(self, gradient):
            return (gradient.conj() * self.weight).real.sum()

    def gradient(rank):
        return torch.randn(16, 8, dtype=torch.complex64, generator=torch.Generator().manual_seed(rank))

    def body(group):
        for name in gradwire.hooks.names():
            ddp = DistributedDataParallel(Complex(), process_group=group)
            ddp.register_comm_hook(*gradwire.hooks.make(f"{name}:{wrap}" if wrap else name))
            for _ in range(2):
                ddp.zero_grad()
                ddp(gradient(group.rank())).backward()
            expected = gradient(group.rank()) if name == "noop" else (gradient(0) + gradient(1)) / 2
            assert torch.equal(ddp.module.weight.grad, expected), name

    ranks.all_well(SIZE, body)


def test_auto_uses_one_hook_on_all_ranks_and_says_why(ranks):
    def body(group):
        ddp = DistributedDataParallel(make_model(), process_group=group)
        state, hook = gradwire.hooks.auto("any")
        ddp.register_comm_hook(*gradwire.hooks.checking(state, hook))
        used = []
        for _ in range(60):
            gradients(ddp, group, steps=1)
            used.append(state.current)
        first = state.choices[0]
        assert first["iteration"] <= 51 and first["hook"] in first["seconds"]
        assert set(used) == set(first["seconds"]), "each hook had a turn"
        assert used[first["iteration"]] == first["hook"]
        again, _ = gradwire.hooks.make("auto:accuracy=any")
        again.load_state_dict(pickle.loads(pickle.dumps(state.state_dict())))
        assert again.current == state.current
        assert list(first["seconds"]) == gradwire.hooks.auto_candidates("any")
        assert state.current_shape == first["shape"] == {"cap_bytes": 0, "lanes": 0}, "a hook around auto asks for none"
        with pytest.raises(dist.InvalidArgument, match="rounding"):
            gradwire.hooks.auto("much")
        return used

    results = ranks.all_well(SIZE, body)
    assert all(used == results[0] for used in results)


def test_auto_chooses_lanes_and_keeps_the_bits(ranks):
    def body(group):
        plain = DistributedDataParallel(make_model(), process_group=group, bucket_cap_mb=0.0001)
        ddp = DistributedDataParallel(make_model(), process_group=group, bucket_cap_mb=0.0001)
        own = DistributedDataParallel(make_model(), process_group=group, bucket_cap_mb=0.0001)
        state, hook = gradwire.hooks.auto("exact")
        fixed, fixed_hook = gradwire.hooks.auto("exact", shape=False)
        ddp.register_comm_hook(state, hook)
        own.register_comm_hook(fixed, fixed_hook)
        for _ in range(40):
            expected = gradients(plain, group, steps=1)
            for other in (ddp, own):
                assert all(torch.equal(a, b) for a, b in zip(gradients(other, group, steps=1), expected))
        choice = state.choices[0]  # others come when the times of steps change, as they do on a busy machine
        assert choice["shape"] in [shape for shape, _ in choice["shapes"]]
        assert [shape["cap_bytes"] for shape, _ in choice["shapes"]] == [0, 0], "the program gives the buckets"
        assert [shape["lanes"] for shape, _ in choice["shapes"]] == [0, 2]
        assert not fixed.choices
        return [choice["shape"] for choice in state.choices]

    shapes = ranks.all_well(SIZE, body)
    assert all(shape == shapes[0] for shape in shapes)


def test_power_sgd_state_checks_and_pickles(ranks):
    with pytest.raises(ValueError, match="start_powerSGD_iter"):
        powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=1)

    def body(group):
        ddp = DistributedDataParallel(make_model(), process_group=group)
        state, hook = gradwire.hooks.power_sgd(rank=2, start=2, min_compression_rate=1)
        ddp.register_comm_hook(state, hook)
        gradients(ddp, group, steps=5)
        again = pickle.loads(pickle.dumps(state))
        assert again.iter == state.iter == 5 and again.matrix_approximation_rank == 2
        assert state.compression_stats()[0] > 1
        name = next(name for name, p in ddp.module.named_parameters() if p.shape == (16, 16))
        assert torch.equal(again.error(name), state.error(name)) and state.error("nothing") is None

    ranks.all_well(SIZE, body)


def test_the_optimizers_step_inside_backward(ranks):
    def body(group):
        ddp = DistributedDataParallel(make_model(), process_group=group, bucket_cap_mb=0.0005)
        make_optimizer = lambda params: torch.optim.Adam(params, 0.01)  # noqa: E731
        hook = optimizer_overlap_hooks.hook_then_optimizer(default_hooks.allreduce_hook, make_optimizer)
        ddp.register_comm_hook(None, hook)
        plain = DistributedDataParallel(make_model(), process_group=group, bucket_cap_mb=0.0005)
        plain.register_comm_hook(None, default_hooks.allreduce_hook)
        optimizer = torch.optim.Adam(plain.parameters(), 0.01)
        for _ in range(3):
            gradients(ddp, group, steps=1)
            gradients(plain, group, steps=1)
            optimizer.step()
        for got, wanted in zip(ddp.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-7)

    ranks.all_well(SIZE, body)


def test_one_hook_that_steps_serves_several_models_and_parameters_whose_data_was_replaced(ranks):
    def body(group):
        make_optimizer = lambda params: torch.optim.SGD(params, 0.01, momentum=0.9)  # noqa: E731
        hook = optimizer_overlap_hooks.hook_then_optimizer(default_hooks.allreduce_hook, make_optimizer)
        models = []
        for _ in range(2):  # equal names
            ours, plain = (DistributedDataParallel(make_model(), process_group=group) for _ in range(2))
            ours.register_comm_hook(None, hook)
            models.append((ours, plain, make_optimizer(list(plain.parameters()))))
        for step in range(4):
            for ours, plain, optimizer in models:
                if step == 2:
                    for parameter in ours.parameters():
                        parameter.data = parameter.detach().clone()
                gradients(ours, group, steps=1)
                gradients(plain, group, steps=1)
                optimizer.step()
                for got, wanted in zip(ours.parameters(), plain.parameters(), strict=True):
                    assert torch.equal(got, wanted), step

    ranks.all_well(SIZE, body)


def test_a_hook_that_steps_has_the_memory_of_its_state(ranks):
    def body(group):
        make_optimizer = lambda params: torch.optim.SGD(params, 0.0)  # noqa: E731
        hook = optimizer_overlap_hooks.hook_then_optimizer(powerSGD_hook.powerSGD_hook, make_optimizer)
        made = {id(hook.make_native(powerSGD_hook.PowerSGDState(None))) for _ in range(50)}
        assert len(made) == 50, "no state has the hook of one that is gone"

    ranks.all_well(1, body)


def test_hooks_without_ddp_and_clipping(ranks):
    def body(group):
        model = make_model()
        model(batch_of(group.rank())).square().sum().backward()
        gradwire.hooks.reduce_gradients(model.named_parameters(), group=group)
        result = [parameter.grad.clone() for parameter in model.parameters()]
        norm = gradwire.hooks.clip_grad_norm(model.parameters(), 1.0)
        assert norm == pytest.approx(torch.sqrt(sum(g.square().sum() for g in result)).item(), rel=1e-5)
        assert gradwire.hooks.clip_grad_norm(model.parameters(), 1.0) == pytest.approx(1.0, rel=1e-4)
        return result

    assert_averages(ranks.all_well(SIZE, body))


@pytest.mark.parametrize("flag", [0, 1, None])
def test_flags_count_by_their_truth(ranks, flag):
    def body(group):
        model = torch.nn.BatchNorm1d(2)
        model.running_mean.fill_(group.rank())
        DistributedDataParallel(model, process_group=group, broadcast_buffers=flag)
        return model.running_mean[0].item()

    kept = flag is not None and not flag
    assert ranks.all_well(2, body) == ([0.0, 1.0] if kept else [0.0, 0.0])


def test_what_has_no_meaning_is_refused(ranks):
    def body(group):
        for arguments in ({"device_mesh": object()}, {"skip_all_reduce_unused_params": True}, {"dim": 1}):
            with pytest.raises(dist.UnsupportedError, match=next(iter(arguments))):
                DistributedDataParallel(make_model(), process_group=group, **arguments)
        with pytest.raises(TypeError):
            DistributedDataParallel(make_model(), process_group="gloo")
        with pytest.raises(TypeError, match="mixed_precision takes"):
            DistributedDataParallel(make_model(), process_group=group, mixed_precision=torch.bfloat16)
        ddp = DistributedDataParallel(make_model(), process_group=group)
        with pytest.raises(TypeError, match="module"):
            pickle.dumps(ddp)
        assert ddp_comm_hooks.__doc__

    ranks.all_well(SIZE, body)


def test_post_local_sgd_averages_models_now_and_then(ranks):
    def body(group):
        from gradwire.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as post_local
        from gradwire.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
        from gradwire.distributed.optim import PostLocalSGDOptimizer

        ddp = DistributedDataParallel(make_model(), process_group=group)
        own = group.split(group.rank())
        ddp.register_comm_hook(post_local.PostLocalSGDState(group, own, 1), post_local.post_localSGD_hook)
        optimizer = PostLocalSGDOptimizer(torch.optim.SGD(ddp.parameters(), 0.1), PeriodicModelAverager(2, 2, group))
        alike = []
        for _ in range(5):
            gradients(ddp, group, steps=1)
            optimizer.step()
            weight = ddp.module[0].weight.detach()
            everyones = [torch.empty_like(weight) for _ in range(SIZE)]
            dist.all_gather(everyones, weight, group)
            alike.append(torch.equal(everyones[0], everyones[1]))
        assert optimizer.state_dict()["step"] == 5
        again = PostLocalSGDOptimizer(torch.optim.SGD(make_model().parameters(), 0.1), PeriodicModelAverager(2, 2, group))
        again.load_state_dict(pickle.loads(pickle.dumps(optimizer.state_dict())))
        assert again.averager.step == 5
        return alike

    assert ranks.all_well(SIZE, body) == [[True, False, True, False, True]] * SIZE


def test_the_others_read_why_a_rank_left_a_join(ranks):
    def body(group):
        ddp = DistributedDataParallel(make_model(), process_group=group)
        with ddp.join():
            if group.rank() == 1:
                raise ValueError("the data set is broken")

    ranks(2, body)
    told, own = ranks.errors
    assert isinstance(own, ValueError)
    assert isinstance(told, dist.PeerError) and "left a Join early: ValueError: the data set is broken" in str(told)


def test_join_lets_ranks_have_different_numbers_of_batches(ranks):
    def body(group):
        ddp = DistributedDataParallel(make_model(), process_group=group)
        optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
        with ddp.join():
            for _ in range(2 + 2 * group.rank()):
                gradients(ddp, group, steps=1)
                optimizer.step()
        return [parameter.detach().clone() for parameter in ddp.parameters()]

    assert_all_equal(ranks.all_well(SIZE, body))


class Words(nn.Module):
    """Sparse embeddings, one with a dense parameter of its own, beside an ordinary layer."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 4, sparse=True)
        self.words.scale = nn.Parameter(torch.full((4,), 0.5))
        self.bags = nn.ModuleList([nn.EmbeddingBag(15, 4, sparse=True, mode="sum")])
        self.out = nn.Linear(4, 2)

    def forward(self, words):
        embedded = self.words(words) * self.words.scale
        return self.out(embedded.sum(1) + self.bags[0](words % 15))


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}])
def test_sparse_embeddings_train_as_in_one_process(ranks, options):
    size = 3

    def words_of(rank, step):
        return torch.randint(20, (4, 5), generator=torch.Generator().manual_seed(10 * step + rank))

    def make():
        with _seeded:
            torch.manual_seed(0)
            return Words()

    def body(group):
        ddp = DistributedDataParallel(make(), process_group=group, **options)
        ddp.register_comm_hook(None, default_hooks.allreduce_hook)
        optimizer = torch.optim.SGD(ddp.parameters(), 0.05)
        for step in range(4):
            optimizer.zero_grad()
            ddp(words_of(group.rank(), step)).square().sum().backward()
            assert ddp.module.words.weight.grad.is_sparse and ddp.module.bags[0].weight.grad.is_sparse
            assert not ddp.module.words.scale.grad.is_sparse
            optimizer.step()
        return [parameter.detach().clone() for parameter in ddp.parameters()]

    model = make()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(4):
        optimizer.zero_grad()
        (sum(model(words_of(rank, step)).square().sum() for rank in range(size)) / size).backward()
        optimizer.step()
    results = ranks.all_well(size, body)
    assert_all_equal(results)
    for got, wanted in zip(results[0], model.parameters(), strict=True):
        torch.testing.assert_close(got, wanted.detach(), rtol=1e-5, atol=1e-6)


def test_an_embedding_alone_and_in_mixed_precision(ranks):
    def body(group):
        ddp = DistributedDataParallel(nn.Embedding(5, 2, sparse=True), process_group=group)
        ddp(torch.tensor([group.rank(), 4])).sum().backward()
        expected = torch.tensor([[0.5], [0.5], [0.0], [0.0], [1.0]]).expand(5, 2)
        assert torch.equal(ddp.module.weight.grad.to_dense(), expected)
        with pytest.raises(dist.UnsupportedError, match="sparse"):
            DistributedDataParallel(nn.Embedding(5, 2, sparse=True), process_group=group,
                                    mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))

    ranks.all_well(SIZE, body)


class Named(list):
    """A list whose constructor takes no other list."""

    def __init__(self, name, *items):
        super().__init__(items)
        self.name = name


def test_mixed_precision_moves_what_lies_in_containers_of_any_class(ranks):
    class Summing(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, values):
            assert type(values) is Named and values.name == "inputs"
            return sum((self.weight * value).sum() for value in values)

    def body(group):
        ddp = DistributedDataParallel(Summing(), process_group=group, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
        given = Named("inputs", torch.ones(2), torch.ones(2))
        assert ddp(given).dtype == torch.bfloat16
        assert given[0].dtype == torch.float32

    ranks.all_well(1, body)


def test_mixed_precision(ranks):
    def body(group):
        types = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        ddp = DistributedDataParallel(make_model(), process_group=group, mixed_precision=types)
        assert ddp(batch_of(0)).dtype == torch.bfloat16
        result = gradients(ddp, group)
        assert all(parameter.dtype == torch.float32 for parameter in ddp.parameters())
        return result

    assert_averages(ranks.all_well(SIZE, body), rtol=0.1, atol=0.3)
