# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel, with ranks as threads."""
import collections
import dataclasses
import os
import pathlib
import pickle
import subprocess
import sys

import pytest
import torch
import torch.distributed.optim
import torch.utils.checkpoint
from torch import nn

from gradwire import distributed as dist
from gradwire.distributed.algorithms import ddp_comm_hooks
from gradwire.distributed.algorithms.ddp_comm_hooks import default_hooks
from gradwire.distributed.algorithms.join import Join
from gradwire.nn.parallel import DistributedDataParallel, MixedPrecision
from gradwire.nn.parallel._nested import moved_to

from ddp_model import SIZE, assert_all_equal, assert_averages, batch_of, generator_lock, gradients, make_model

BUILD = pathlib.Path(os.environ.get("GRADWIRE_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))


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

    def __init__(self, times=2, reentrant=True):
        super().__init__()
        self.block = make_model()
        self.times, self.reentrant = times, reentrant

    def forward(self, x):
        x = x.clone().requires_grad_()
        for _ in range(self.times):
            x = nn.functional.pad(torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=self.reentrant), (0, 3))
        return x


@pytest.mark.parametrize("cap", [25, 0.0005])
def test_a_second_gradient_from_a_reentrant_checkpoint_is_refused_or_averaged(cap):
    """With a process a rank: autograd has one thread a device for re-entrant passes."""
    program = f"""
import torch
from gradwire import distributed as dist
from gradwire.nn.parallel import DistributedDataParallel
from ddp_model import batch_of
from test_ddp import CheckpointedTwice
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
# What the error advises.
for options in (dict(), dict(find_unused_parameters=True)):
    ddp = DistributedDataParallel(CheckpointedTwice(reentrant=False), bucket_cap_mb={cap}, **options)
    ddp(batch_of(rank)).square().sum().backward()
    for got, want in zip(ddp.parameters(), wanted.parameters()):
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-4, atol=1e-5)
# The search for unused parameters does not look into a re-entrant checkpoint: there, once is too often.
for times, unused in ((2, False), (1, True)):
    ddp = DistributedDataParallel(CheckpointedTwice(times), bucket_cap_mb={cap}, find_unused_parameters=unused,
                                  process_group=dist.new_group([0, 1]))
    try:
        ddp(batch_of(rank)).square().sum().backward()
    except dist.DistError as error:  # in the words of the other rank, where that was first
        assert "second gradient" in str(error), error
        assert "inside re-entrant checkpoints" in str(error) and "use_reentrant=False" in str(error), error
        print("refused")
"""
    result = subprocess.run([BUILD / "bin" / "gradwire-run", "-n", "2", sys.executable, "-c", program], capture_output=True,
                            text=True, timeout=120, cwd=pathlib.Path(__file__).parent)
    assert result.stdout.count("refused") == 4, result.stdout + result.stderr


class FailsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(context, x, error):
        context.error = error
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        if context.error is not None:
            raise context.error
        return gradient, None


@pytest.mark.parametrize("error, words", [(KeyError("sample"), "KeyError: 'sample'"), (KeyboardInterrupt(), "KeyboardInterrupt")])
def test_other_ranks_read_the_class_of_an_exception_in_a_backward_pass(ranks, error, words):
    def body(group):
        model = make_model()
        ddp = DistributedDataParallel(nn.Sequential(model, nn.Linear(3, 3)), process_group=group, bucket_cap_mb=0.0005)
        between = model.register_forward_hook(
            lambda module, inputs, output: FailsInBackward.apply(output, error if group.rank() == 1 else None))
        with pytest.raises(BaseException) as raised:
            ddp(batch_of(group.rank())).square().sum().backward()
        between.remove()
        later = ""
        if group.rank() == 1:
            assert raised.type is type(error)
            with pytest.raises(dist.AbortedError) as again:
                ddp(batch_of(1))
            later = str(again.value)
        return str(raised.value), later

    (told, _), (_, later) = ranks.all_well(SIZE, body)
    assert f"failed in its backward pass: error: {words};" in told, told
    assert f"an earlier pass failed (error: {words})" in later, later


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


def test_lists_of_ignored_parameters_that_differ_are_told(ranks):
    def body(group):
        model = make_model()
        names = [name for name, _ in model.named_parameters()]
        ignore = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
        ignore(model, names[:1] if group.rank() == 1 else [])
        with pytest.raises(dist.MismatchError, match=f"'{names[0]}' is named on rank 1 and not on rank 0"):
            DistributedDataParallel(model, process_group=group)
        delayed = dict(model.named_parameters())
        ignore(model, names[:1])
        with pytest.raises(dist.InvalidArgument, match=f"delay_all_reduce_named_params names '{names[0]}', and"):
            DistributedDataParallel(
                model, process_group=group, delay_all_reduce_named_params=[(names[0], delayed[names[0]])],
                param_to_hook_all_reduce=delayed[names[1]],
            )
        DistributedDataParallel(model, process_group=group)  # the group goes on

    ranks.all_well(SIZE, body)


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
        with generator_lock:
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
