# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Optimizers over several ranks, averagers and Join, with ranks as threads.

Oracles are PyTorch's optimizers, which know of no ranks, PyTorch's own ZeroRedundancyOptimizer for who steps what, and
means in float64.
"""
import copy
import pickle
import threading
from functools import partial

import pytest
import torch
import torch.distributed.optim  # noqa: F401  (torch.distributed does not import it)
from torch import nn

from gradwire import distributed as dist
from gradwire.distributed.algorithms import Join, Joinable, JoinableStep
from gradwire.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook, default_hooks, optimizer_overlap_hooks
from gradwire.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from gradwire.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager
from gradwire.distributed.algorithms.model_averaging.utils import average_parameters_or_parameter_groups
from gradwire.distributed.optim import ZeroRedundancyOptimizer
from gradwire.nn.parallel import DistributedDataParallel

SHAPES = [(5, 3), (7,), (2, 2, 2), (16, 9), (1,), (30,), ()]
_seeded = threading.Lock()

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01)
ADAM = partial(torch.optim.AdamW, lr=0.01, betas=(0.8, 0.9))


def make_parameters(shapes=SHAPES):
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def give_gradients(parameters, step):
    """What DDP would bring: the same on every rank."""
    generator = torch.Generator().manual_seed(1000 + step)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def make_model():
    with _seeded:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))


def backward(model, rank, step):
    model.zero_grad()
    generator = torch.Generator().manual_seed(100 * step + rank)
    model(torch.randn(5, 6, generator=generator)).square().sum().backward()


def equal(a, b):
    """Bit for bit, in whatever tensors lie."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b))
    return a == b


def zero_of(parameters, make, group, **options):
    return ZeroRedundancyOptimizer(parameters, make.func, process_group=group, **options, **make.keywords)


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("make", [SGD, ADAM], ids=["SGD", "AdamW"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_zero_has_the_bits_of_the_plain_optimizer(ranks, size, make, view):
    def body(group):
        ours, plain = make_parameters(), make_parameters()
        groups = lambda p: [{"params": p[:4]}, {"params": p[4:], "lr": 0.003}]  # noqa: E731
        zero = zero_of(groups(ours), make, group, parameters_as_bucket_view=view)
        reference = make(groups(plain))
        for step in range(50):
            give_gradients(ours, step)
            give_gradients(plain, step)
            zero.step()
            reference.step()
            if step == 20:
                for optimizer in (zero, reference):
                    optimizer.param_groups[0]["lr"] *= 0.5
            assert equal(ours, plain), step
        mine = sum(len(own["params"]) for own in zero.optim.param_groups)
        assert mine == sum(zero.owner_of(parameter) == group.rank() for parameter in ours)
        zero.consolidate_state_dict(to=size - 1)
        if group.rank() == size - 1:
            assert equal(zero.state_dict(), reference.state_dict())
        else:
            with pytest.raises(dist.InvalidArgument, match="consolidate_state_dict"):
                zero.state_dict()
        return mine

    assert sum(ranks.all_well(size, body)) == len(SHAPES)


def test_zero_gives_parameters_to_the_ranks_that_pytorchs_gives_them(ranks):
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        parameters = make_parameters()
        theirs = torch.distributed.optim.ZeroRedundancyOptimizer(
            [{"params": parameters[:4]}, {"params": parameters[4:]}], torch.optim.SGD, lr=0.1)
        theirs.world_size = 3
        theirs._clear_cache()
        owners = {parameter: rank for rank, groups in enumerate(theirs._partition_parameters())
                  for group in groups for parameter in group["params"]}
    finally:
        torch.distributed.destroy_process_group()
    expected = [owners[parameter] for parameter in parameters]

    def body(group):
        own = make_parameters()
        zero = zero_of([{"params": own[:4]}, {"params": own[4:]}], SGD, group)
        return [zero.owner_of(parameter) for parameter in own]

    assert ranks.all_well(3, body) == [expected] * 3


def test_zero_state_moves_between_worlds_and_the_plain_optimizer(ranks):
    reference = make_parameters()
    plain = ADAM(reference)

    def train(parameters, optimizer, steps):
        for step in steps:
            give_gradients(parameters, step)
            optimizer.step()

    def first(group):
        parameters = make_parameters()
        zero = zero_of(parameters, ADAM, group)
        train(parameters, zero, range(5))
        zero.consolidate_state_dict(to=1)
        saved = pickle.dumps((zero.state_dict(), [p.data for p in parameters])) if group.rank() == 1 else None
        train(parameters, zero, range(5, 6))
        if group.rank() == 1:
            with pytest.raises(dist.InvalidArgument, match="older than the last step"):
                zero.state_dict()
        return saved

    saved = ranks.all_well(3, first)[1]
    train(reference, plain, range(5))
    assert equal(pickle.loads(saved)[0], plain.state_dict())

    def load(parameters, optimizer):
        state, values = pickle.loads(saved)
        before = copy.deepcopy(state)
        with torch.no_grad():
            for parameter, value in zip(parameters, values):
                parameter.copy_(value)
        optimizer.load_state_dict(state)
        assert equal(state, before)

    def second(group):
        parameters = make_parameters()
        zero = zero_of(parameters, partial(torch.optim.AdamW, lr=99.0), group)
        load(parameters, zero)
        assert zero.param_groups[0]["lr"] == zero.optim.param_groups[0]["lr"] == 0.01
        train(parameters, zero, range(5, 10))
        with pytest.raises(ValueError):
            zero.load_state_dict({"state": {}, "param_groups": []})
        return [parameter.detach() for parameter in parameters]

    again = make_parameters()
    plain_again = ADAM(again)
    load(again, plain_again)
    train(reference, plain, range(5, 10))
    train(again, plain_again, range(5, 10))
    for size in (1, 2, 3):
        for parameters in ranks.all_well(size, second):
            assert equal(parameters, [parameter.detach() for parameter in reference]) and equal(again, reference)


def test_zero_has_the_defaults_of_its_optimizer(ranks):
    """OneCycleLR looks there whether there are betas."""
    def body(group):
        parameter = torch.nn.Parameter(torch.ones(3))
        zero = ZeroRedundancyOptimizer([parameter], torch.optim.AdamW, process_group=group, lr=0.1)
        assert zero.defaults == torch.optim.AdamW([parameter], lr=0.1).defaults
        torch.optim.lr_scheduler.OneCycleLR(zero, max_lr=0.2, total_steps=5)
        assert zero.param_groups[0]["betas"][0] == 0.95

    ranks.all_well(2, body)


def test_zero_takes_closures_schedulers_and_further_groups(ranks):
    def body(group):
        ours, plain = make_parameters(), make_parameters()
        zero, reference = zero_of(ours[:4], SGD, group), SGD(plain[:4])
        schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) for optimizer in (zero, reference)]
        for step in range(8):
            if step == 4:
                zero.add_param_group({"params": ours[4:], "momentum": 0.5})
                reference.add_param_group({"params": plain[4:], "momentum": 0.5})
            calls = []

            def closure():
                calls.append(step)
                give_gradients(ours, step)
                return torch.tensor(float(step))

            give_gradients(plain, step)
            assert zero.step(closure) == step and calls == [step]
            reference.step()
            for scheduler in schedulers:
                scheduler.step()
            assert equal(ours, plain)
        assert zero.param_groups[0]["lr"] == pytest.approx(0.1 / 16)

    ranks.all_well(3, body)


def test_zero_keeps_strides_and_types(ranks):
    def body(group):
        ours = [nn.Parameter(torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last)),
                nn.Parameter(torch.ones(5, dtype=torch.bfloat16))]
        plain = copy.deepcopy(ours)
        zero, reference = zero_of(ours, SGD, group, parameters_as_bucket_view=True), SGD(plain)
        for step in range(3):
            for parameters in (ours, plain):
                for parameter in parameters:
                    parameter.grad = torch.full_like(parameter, 0.25 * (step + 1))
            zero.step()
            reference.step()
        assert equal(ours, plain) and ours[0].stride() == plain[0].stride()

    ranks.all_well(2, body)


def test_zero_refuses_what_cannot_be_right(ranks):
    def body(group):
        parameters = make_parameters()
        refused = {"LBFGS": lambda: ZeroRedundancyOptimizer(parameters, torch.optim.LBFGS, group),
                   "one parameter group": lambda: zero_of(
                       [{"params": parameters[:1]}, {"params": parameters[1:]}], SGD, group, overlap_with_ddp=True),
                   "empty": lambda: zero_of([], SGD, group),
                   "learning rate": lambda: ZeroRedundancyOptimizer(parameters, torch.optim.SGD, group, lr=-1.0)}
        for match, make in refused.items():
            with pytest.raises(ValueError, match=match):
                make()
        zero = zero_of(parameters, SGD, group)
        with pytest.raises(TypeError, match="state_dict"):
            pickle.dumps(zero)
        with pytest.raises(dist.InvalidArgument, match="no rank 2"):
            zero.consolidate_state_dict(2)
        with pytest.raises(dist.MismatchError, match=r"\[0, 1\]"):
            zero.consolidate_state_dict(group.rank())
        zero.consolidate_state_dict()
        zero_of(make_parameters(SHAPES[: 3 + group.rank()]), SGD, group)

    ranks(2, body)
    for error in ranks.errors:
        assert isinstance(error, dist.MismatchError) and "3 parameters" in str(error) and "4 parameters" in str(error)


@pytest.mark.parametrize("unscales", [False, True])
def test_a_scaled_loss_is_refused_where_the_backward_pass_steps(ranks, unscales):
    def body(group):
        model = nn.Linear(3, 2)
        ddp = DistributedDataParallel(model, process_group=group)
        zero = zero_of(model.parameters(), SGD, group, overlap_with_ddp=True)
        ddp.register_comm_hook(None, ddp_zero_hook.hook_with_zero_step(default_hooks.allreduce_hook, ddp, zero))
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(ddp(torch.ones(1, 3)).sum()).backward()
        if unscales:
            scaler.unscale_(zero)
        with pytest.raises(dist.UnsupportedError, match="on rank .*Use a GradScaler without overlap_with_ddp"):
            scaler.step(zero)
        off = torch.amp.GradScaler("cpu", enabled=False)
        off.step(zero_of(model.parameters(), SGD, group, overlap_with_ddp=True))

    ranks.all_well(2, body)


def test_zero_refuses_a_group_that_was_shut_down(ranks):
    def body(group):
        zero = ZeroRedundancyOptimizer(make_parameters(), SGD, process_group=group)
        zero.step()
        group.shutdown()
        for call in (zero.step, zero.consolidate_state_dict):
            with pytest.raises(dist.InvalidArgument, match="ZeroRedundancyOptimizer was shut down on rank"):
                call()

    ranks.all_well(2, body)


def test_zero_refuses_a_step_while_ddp_waits_for_gradients(ranks):
    class TwoBranches(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x, skips_second):
            return self.first(x) if skips_second else self.second(self.first(x))

    def body(group):
        ddp = DistributedDataParallel(TwoBranches(), process_group=group)
        zero = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, process_group=group, lr=0.1)
        for step in range(2):
            zero.zero_grad()
            ddp(torch.ones(2, 4), False).sum().backward()
            zero.step()
        zero.zero_grad()
        with pytest.raises(dist.DistError) as raised:
            ddp(torch.ones(2, 4), group.rank() == 1).sum().backward()
            zero.step()
        assert "got no gradient: 'second.weight', 'second.bias'" in str(raised.value), raised.value
        assert isinstance(raised.value, dist.InvalidArgument) == (group.rank() == 1), raised.value

    ranks.all_well(2, body)


def test_zero_tells_the_other_ranks_of_a_step_that_failed(ranks):
    class Fails(torch.optim.SGD):
        def step(self, closure=None):
            raise KeyError("the reason")

    def body(group):
        kind = Fails if group.rank() == 1 else torch.optim.SGD
        ZeroRedundancyOptimizer(make_parameters(), kind, group, lr=0.1).step()

    ranks(2, body)
    first, second = ranks.errors
    assert isinstance(second, KeyError)
    assert isinstance(first, dist.PeerError) and "the reason" in str(first) and "rank 1" in str(first)


@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize("hook", [ddp_zero_hook.hook_with_zero_step, ddp_zero_hook.hook_with_zero_step_interleaved])
def test_zero_inside_backward_has_the_bits_of_the_plain_optimizer(ranks, hook, shard):
    def body(group):
        def ddp_of():
            return DistributedDataParallel(make_model(), process_group=group, bucket_cap_mb=0.0005)

        ours, plain = ddp_of(), ddp_of()
        zero = zero_of(ours.parameters(), ADAM, group, overlap_with_ddp=True, parameters_as_bucket_view=shard)
        ours.register_comm_hook(None, hook(default_hooks.allreduce_hook, ours, zero, shard_buckets=shard))
        plain.register_comm_hook(None, default_hooks.allreduce_hook)
        reference = ADAM(plain.parameters())
        with pytest.raises(dist.InvalidArgument, match="first update"):
            zero.owner_of(next(iter(ours.parameters())))
        for step in range(6):
            backward(ours, group.rank(), step)
            backward(plain, group.rank(), step)
            zero.step()
            if step >= 2:  # as PyTorch's, which learns the buckets first
                reference.step()
            for mine, other in zip(ours.parameters(), plain.parameters(), strict=True):
                assert torch.equal(mine, other) and torch.equal(mine.grad, other.grad), step
            if step == 3:
                zero.consolidate_state_dict()
                if group.rank() == 0:
                    assert equal(zero.state_dict(), reference.state_dict())
                state = [zero.state_dict() if group.rank() == 0 else None]
                dist.broadcast_object_list(state, 0, group)
                zero.load_state_dict(state[0])
        assert {zero.owner_of(parameter) for parameter in ours.parameters()} == {0, 1}
        with pytest.raises(dist.InvalidArgument, match="one is enough"):
            hook(default_hooks.allreduce_hook, ours, zero)
        with pytest.raises(dist.InvalidArgument, match="overlap_with_ddp"):
            hook(default_hooks.allreduce_hook, ours, zero_of(ours.parameters(), SGD, group))

    ranks.all_well(2, body)


@pytest.mark.parametrize("first", [1, 4])
@pytest.mark.parametrize("steps", ["zero", "zero_interleaved", "then_optimizer"])
def test_steps_inside_backward_leave_frozen_parameters_alone(ranks, steps, first):
    def body(group):
        def ddp_of():
            return DistributedDataParallel(
                make_model(), process_group=group, bucket_cap_mb=0.0005, find_unused_parameters=True
            )

        ours, plain = ddp_of(), ddp_of()
        if steps == "then_optimizer":
            skipped = 0
            hook = optimizer_overlap_hooks.hook_then_optimizer(default_hooks.allreduce_hook, ADAM)
        else:
            skipped = 2  # as PyTorch's, which learns the buckets first
            zero = zero_of(ours.parameters(), ADAM, group, overlap_with_ddp=True)
            make = ddp_zero_hook.hook_with_zero_step
            if steps == "zero_interleaved":
                make = ddp_zero_hook.hook_with_zero_step_interleaved
            hook = make(default_hooks.allreduce_hook, ours, zero)
        ours.register_comm_hook(None, hook)
        reference = ADAM(plain.parameters())
        for step in range(9):
            for ddp in (ours, plain):
                for parameter in ddp.module[2].parameters():
                    parameter.requires_grad_(step < first or step >= 7)
                backward(ddp, group.rank(), step)
            if step >= skipped:
                reference.step()
            for mine, other in zip(ours.parameters(), plain.parameters(), strict=True):
                assert torch.equal(mine, other), step

    ranks.all_well(2, body)


def test_a_step_inside_backward_refuses_a_parameter_that_one_rank_has_frozen(ranks):
    def body(group):
        ddp = DistributedDataParallel(make_model(), process_group=group, find_unused_parameters=True)
        hook = optimizer_overlap_hooks.hook_then_optimizer(default_hooks.allreduce_hook, SGD)
        ddp.register_comm_hook(None, hook)
        first = next(ddp.parameters())
        backward(ddp, group.rank(), 0)
        first.requires_grad_(False)
        before = first.clone()
        backward(ddp, group.rank(), 1)
        assert torch.equal(first, before), "all ranks have frozen it"
        first.requires_grad_(group.rank() != 0)
        # The other ranks hear of it in their next iteration.
        with pytest.raises((dist.InvalidArgument, dist.PeerError), match="needs no gradient on rank 0"):
            for step in (2, 3):
                backward(ddp, group.rank(), step)

    ranks.all_well(2, body)


def test_zero_inside_backward_goes_on_beside_sparse_gradients(ranks):
    class Scores(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
            self.table = torch.nn.Embedding(6, 4, sparse=True)  # its gradient comes first

        def forward(self, x, words):
            return (self.body(x) * self.table(words)).sum(1)

    def body(group):
        torch.manual_seed(3)
        ddp = DistributedDataParallel(Scores(), process_group=group, bucket_cap_mb=1e-6)
        plain = copy.deepcopy(ddp.module)
        zero = zero_of(ddp.module.body.parameters(), ADAM, group, overlap_with_ddp=True)
        ddp.register_comm_hook(None, ddp_zero_hook.hook_with_zero_step(default_hooks.allreduce_hook, ddp, zero))
        reference = ADAM(plain.body.parameters())
        x, words = torch.ones(3, 4), torch.tensor([0, 2, 5])  # the same on both ranks
        for step in range(5):
            for model in ddp, plain:
                model.zero_grad()
                model(x, words).square().sum().backward()
            zero.step()
            if step >= 2:
                reference.step()
        for mine, other in zip(ddp.module.body.parameters(), plain.body.parameters(), strict=True):
            assert torch.allclose(mine, other)

    ranks.all_well(2, body)


def test_zero_joins_beside_ddp(ranks):
    def body(group, sharded):
        model = DistributedDataParallel(make_model(), process_group=group)
        if sharded:
            optimizer = zero_of(model.parameters(), ADAM, group)
        else:
            optimizer = ADAM(model.parameters())
        with Join([model, optimizer] if sharded else [model]):
            for step in range(2 + 3 * group.rank()):
                backward(model, group.rank(), step)
                optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    plain = ranks.all_well(2, partial(body, sharded=False))
    # The first to leave goes on stepping its part, so the last one's model is that of a plain optimizer.
    for result in plain + ranks.all_well(2, partial(body, sharded=True)):
        assert equal(result, plain[1])


def test_a_step_on_a_rank_that_has_joined_keeps_its_optimizer_up_to_date(ranks):
    def body(group, kind):
        model = DistributedDataParallel(make_model(), process_group=group)
        optimizer = zero_of(model.parameters(), ADAM, group) if kind == "zero" else ADAM(model.parameters())
        second = {"zero": [optimizer], "step": [JoinableStep(model, optimizer.step)], "alone": []}[kind]
        for batches in (1, 4), (3, 1), (2, 2):
            with Join([model, *second]):
                for step in range(batches[group.rank()]):
                    optimizer.zero_grad()
                    backward(model, group.rank(), step)
                    optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    sharded = ranks.all_well(2, partial(body, kind="zero"))
    for result in sharded + ranks.all_well(2, partial(body, kind="step")):
        assert equal(result, sharded[0])
    assert not equal(ranks.all_well(2, partial(body, kind="alone"))[0], sharded[0]), "the case proves nothing"


def test_a_rank_that_leaves_a_join_before_its_step_tells_the_others(ranks):
    def body(group):
        model = DistributedDataParallel(make_model(), process_group=group)
        optimizer = zero_of(model.parameters(), ADAM, group)
        try:
            with Join([model, optimizer]):
                for step in range(1 + min(group.rank(), 1)):
                    backward(model, group.rank(), step)
                    if group.rank() == 2 and step == 1:
                        raise ValueError("the data are gone")
                    optimizer.step()
        except ValueError:
            assert group.rank() == 2
        except dist.PeerError as error:
            assert "rank 2 left a Join before the step of ZeroRedundancyOptimizer: ValueError: the data are" in str(error)
        else:
            raise AssertionError("this rank heard of nothing")
        dist.barrier(group=group)  # until then rank 2 keeps its objects

    ranks.all_well(3, body)


def test_a_step_that_is_left_out_is_an_error_once_a_rank_has_joined(ranks):
    def body(group):
        model = DistributedDataParallel(make_model(), process_group=group)
        optimizer = zero_of(model.parameters(), ADAM, group)
        with pytest.raises((dist.InvalidArgument, dist.PeerError), match="joinable 1 of the 2 has not ended its part"):
            with Join([model, optimizer]):
                for step in range(1 + 2 * group.rank()):
                    backward(model, group.rank(), step)
        dist.barrier(group=group)

    ranks.all_well(2, body)


def test_a_joinable_step_needs_a_function(ranks):
    def body(group):
        model = DistributedDataParallel(make_model(), process_group=group)
        with pytest.raises(dist.InvalidArgument, match="a NoneType is no function"):
            JoinableStep(model, None)

    ranks.all_well(1, body)


class Branches(nn.Module):
    """A body, and a branch that only some steps use."""

    def __init__(self):
        super().__init__()
        with _seeded:
            torch.manual_seed(1)
            self.branch, self.body = nn.Linear(4, 4), nn.Linear(4, 4)  # rank 0 steps the first one

    def forward(self, x, branch):
        return self.branch(self.body(x)) if branch else self.body(x)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_steps_what_nobody_uses_as_the_others_do_on_a_rank_that_has_joined(ranks, set_to_none):
    def body(group, sharded):
        model = DistributedDataParallel(Branches(), process_group=group, find_unused_parameters=True)
        optimizer = zero_of(model.parameters(), SGD, group) if sharded else SGD(model.parameters())
        with Join([model, optimizer] if sharded else [model]):
            for step in range(1 if group.rank() == 0 else 6):
                optimizer.zero_grad(set_to_none=set_to_none)
                model(torch.full((2, 4), 1.0 + step), step in (0, 2)).square().sum().backward()
                optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    plain = ranks.all_well(2, partial(body, sharded=False))
    for result in plain + ranks.all_well(2, partial(body, sharded=True)):
        assert equal(result, plain[1])


class Counter(Joinable):
    """Counts everyone's calls; a rank that has left counts 0."""

    class Hook:  # a hook of PyTorch's has these two methods alone
        def __init__(self, counter):
            self.counter = counter

        def main_hook(self):
            self.counter.add(0)

        def post_hook(self, is_last_joiner):
            self.counter.last = is_last_joiner

    def __init__(self, group):
        super().__init__()
        self.group, self.count, self.last = group, 0, None

    def join_hook(self, **kwargs):
        assert kwargs == {"extra": 5}
        return self.Hook(self)

    @property
    def join_device(self):
        return torch.device("cpu")

    @property
    def join_process_group(self):
        return self.group

    def add(self, value):
        tensor = torch.tensor(value)
        dist.all_reduce(tensor, group=self.group)
        self.count += tensor.item()

    def __call__(self):
        Join.notify_join_context(self)
        self.add(1)


def test_a_joinable_in_python(ranks):
    def body(group):
        counter = Counter(group)
        with Join([counter], extra=5):
            for _ in range(1 + group.rank()):
                counter()
        assert counter.last == (group.rank() == 2)
        with pytest.raises(dist.EarlyTermination):
            with Join([counter], throw_on_early_termination=True, extra=5):
                for _ in range(1 + group.rank()):
                    counter()
        with pytest.raises(ValueError, match="Joinable"):
            Join([])
        return counter.count

    assert len(set(ranks.all_well(3, body))) == 1


@pytest.mark.parametrize("warmup", [0, 3])
def test_hierarchical_averaging_takes_the_means_of_the_groups_that_are_due(ranks, warmup):
    size, levels = 4, {2: 2, 6: 4}

    def body(group):
        parameters = [nn.Parameter(torch.empty(3)), nn.Parameter(torch.zeros(2))]
        parameters[0].grad = torch.zeros(3)
        averager = HierarchicalModelAverager(levels, warmup, group)
        seen = []
        for step in range(14):
            with torch.no_grad():
                parameters[0].copy_(torch.tensor([1.0, 10.0, 0.1]) * (step + 1) * (group.rank() + 1))
                parameters[1].fill_(group.rank())
            averager.average_parameters([{"params": parameters}])
            seen.append(parameters[0].detach().clone())
            assert (parameters[1] == group.rank()).all()  # without a gradient
        assert averager.step == 14
        with pytest.raises(ValueError, match="divide 4"):
            HierarchicalModelAverager({1: 3, 2: 4}, 0, group)
        with pytest.raises(ValueError, match="rise"):
            HierarchicalModelAverager({4: 2, 2: 4}, 0, group)
        return seen

    results = ranks.all_well(size, body)
    for step in range(14):
        own = [torch.tensor([1.0, 10.0, 0.1]).double() * (step + 1) * (rank + 1) for rank in range(size)]
        due = [group_size for period, group_size in levels.items() if step % period == 0 and step >= warmup]
        for rank in range(size):
            width = max(due, default=1)
            begin = rank // width * width
            mean = torch.stack(own[begin:begin + width]).mean(0)
            torch.testing.assert_close(results[rank][step].double(), mean, rtol=3e-7, atol=0)
            assert torch.equal(results[rank][step], results[begin][step])


def test_periodic_averaging_finds_ranks_with_other_parameters(ranks):
    def body(group):
        parameter = nn.Parameter(torch.ones(2 + group.rank(), dtype=torch.float64))
        parameter.grad = torch.zeros_like(parameter)
        PeriodicModelAverager(1, 0, group).average_parameters([parameter])

    ranks(2, body)
    assert all(isinstance(error, dist.DistError) for error in ranks.errors)


def averagers_at_each_second_step(group):
    return [PeriodicModelAverager(2, 0, group), HierarchicalModelAverager({2: 2}, 0, group)]


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("none_on_rank_1", [False, True])
def test_averagers_find_ranks_with_gradients_of_other_parameters(ranks, kind, none_on_rank_1):
    def body(group):
        parameters = [nn.Parameter(torch.full((8, 8), float(group.rank()))) for _ in range(2)]
        if group.rank() == 0 or not none_on_rank_1:
            parameters[group.rank()].grad = torch.zeros(8, 8)
        averager = averagers_at_each_second_step(group)[kind]
        with pytest.raises(dist.MismatchError, match="has a gradient on rank 0 and none on rank 1"):
            averager.average_parameters([{"params": parameters}])
        assert averager.step == 0
        with pytest.raises(dist.MismatchError, match="has a gradient on rank 0 and none on rank 1"):
            average_parameters_or_parameter_groups(parameters, group)
        assert all((parameter == group.rank()).all() for parameter in parameters)
        for parameter in parameters:
            parameter.grad = torch.zeros(8, 8)
        averager.average_parameters(parameters)
        return [parameter.mean().item() for parameter in parameters]

    assert ranks.all_well(2, body) == [[0.5, 0.5]] * 2


@pytest.mark.parametrize("kind", [0, 1])
def test_averagers_find_ranks_at_other_steps(ranks, kind):
    def body(group):
        parameter = nn.Parameter(torch.ones(3))
        parameter.grad = torch.zeros(3)
        averager = averagers_at_each_second_step(group)[kind]
        averager.step = 2 + 2 * group.rank()
        with pytest.raises(dist.MismatchError, match="rank 0 averages at step 2 and rank 1 at step 4"):
            averager.average_parameters([parameter])

    ranks.all_well(2, body)


def test_an_average_without_any_gradient_warns_and_counts(ranks):
    def body(group):
        parameter = nn.Parameter(torch.full((3,), float(group.rank())))
        averager = PeriodicModelAverager(1, 0, group)
        averager.average_parameters([parameter])
        assert averager.step == 1
        assert (parameter == group.rank()).all()

    with pytest.warns(UserWarning, match="no parameter has a gradient"):
        ranks.all_well(2, body)
