# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""gradwire.nn.SyncBatchNorm is the BatchNorm of all ranks' samples; PyTorch's BatchNorm in float64 is the reference."""
import copy
import pickle

import pytest
import torch
from torch import nn

import forks
from gradwire import distributed as dist
from gradwire.nn import SyncBatchNorm
from gradwire.nn.parallel import DistributedDataParallel

CHANNELS = 5
SIZES = (4, 0, 3)  # samples of each rank
TENSORS = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def sample_of(rank, count, shape=(), seed=0):
    generator = torch.Generator().manual_seed(100 * seed + rank)
    return torch.randn(count, CHANNELS, *shape, generator=generator, dtype=torch.double) * (rank + 1) + rank


def layer(kind, **options):
    made = kind(CHANNELS, **options).double()
    with torch.no_grad():
        for index, parameter in enumerate(made.parameters()):
            parameter.copy_(torch.linspace(-1, 1 + index, CHANNELS))
    return made


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=["1d", "2d", "3d"])
@pytest.mark.parametrize("options", [
    {}, {"momentum": None}, {"eps": 0.1, "momentum": 0.7}, {"affine": False}, {"bias": False}, {"track_running_stats": False},
], ids=str)
def test_it_is_the_batch_norm_of_all_samples(ranks, options, shape):
    plain = layer([nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d][len(shape)], **options)
    inputs = []
    for step in range(3):
        inputs.append(torch.cat([sample_of(rank, count, shape, step) for rank, count in enumerate(SIZES)]).requires_grad_())
        wanted = plain(inputs[-1])
        (wanted * torch.arange(wanted.numel(), dtype=torch.double).view_as(wanted).sin()).sum().backward()
    evaluated = plain.eval()(inputs[0])

    def body(group):
        mine = layer(SyncBatchNorm, process_group=group, **options)
        first = sum(SIZES[:group.rank()])
        rows = slice(first, first + SIZES[group.rank()])
        for step in range(3):
            x = sample_of(group.rank(), SIZES[group.rank()], shape, step).requires_grad_()
            y = mine(x)
            factors = torch.arange(wanted.numel(), dtype=torch.double).view_as(wanted).sin()[rows]
            (y * factors).sum().backward()
            torch.testing.assert_close(x.grad, inputs[step].grad[rows])
        torch.testing.assert_close(y, wanted[rows])
        for parameter, theirs in zip(mine.parameters(), plain.parameters(), strict=True):
            total = dist.nn.functional.all_reduce(parameter.grad, group=group)
            torch.testing.assert_close(total, theirs.grad)
        for name, theirs in plain.named_buffers():
            torch.testing.assert_close(getattr(mine, name), theirs)
        torch.testing.assert_close(mine.eval()(inputs[0]), evaluated)
        return [buffer.clone() for buffer in mine.buffers()]

    results = ranks.all_well(len(SIZES), body)
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert torch.equal(one, two)


def test_a_rank_alone_has_the_bits_of_a_batch_norm(ranks):
    def body(group):
        for mine in (layer(SyncBatchNorm, process_group=group), layer(SyncBatchNorm)):
            plain = layer(nn.BatchNorm1d)
            for step in range(2):
                x = sample_of(0, 6, seed=step)
                assert torch.equal(mine(x), plain(x))
            assert torch.equal(mine.eval()(x), plain.eval()(x))
            for name in TENSORS:
                assert torch.equal(getattr(mine, name), getattr(plain, name))

    ranks.all_well(1, body)


def test_a_model_under_ddp_trains_as_on_the_whole_batch(ranks):
    def model(seed=3):
        layers = nn.Linear(CHANNELS, CHANNELS), nn.BatchNorm1d(CHANNELS), nn.Tanh(), nn.Linear(CHANNELS, 1)
        made = nn.Sequential(*layers).double()
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        return made

    def train(net, batch_of):
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for step in range(5):
            optimizer.zero_grad()
            net(batch_of(step)).square().mean().backward()
            optimizer.step()

    serial = model()
    train(serial, lambda step: torch.cat([sample_of(rank, 4, seed=step) for rank in range(2)]))

    def body(group):
        net = SyncBatchNorm.convert_sync_batchnorm(model(), group)
        assert isinstance(net[1], SyncBatchNorm)
        ddp = DistributedDataParallel(net, process_group=group)
        train(ddp, lambda step: sample_of(group.rank(), 4, seed=step))
        for mine, theirs in zip([*net.parameters(), *net.buffers()], [*serial.parameters(), *serial.buffers()], strict=True):
            torch.testing.assert_close(mine, theirs)

    ranks.all_well(2, body)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("momentum", [None, 0.3])
def test_a_checkpoint_counts_its_second_forward_as_a_batch_norm_does(ranks, size, momentum):
    """The second forward ends as soon as it has what the backward pass needs."""
    from torch.utils.checkpoint import checkpoint

    def trained(norm, batches):
        for batch in batches:
            checkpoint(norm, batch.requires_grad_(), use_reentrant=False).square().sum().backward()
        return norm

    def samples(rank, step):
        return sample_of(rank, 4, seed=step)

    plain = trained(layer(nn.BatchNorm1d, momentum=momentum),
                    [torch.cat([samples(rank, step) for rank in range(size)]) for step in range(3)])
    assert plain.num_batches_tracked == 6

    def body(group):
        mine = trained(layer(SyncBatchNorm, momentum=momentum, process_group=group), [samples(group.rank(), step) for step in range(3)])
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            torch.testing.assert_close(getattr(mine, name), getattr(plain, name))

    ranks.all_well(size, body)


def test_what_cannot_be_normalized_is_refused_on_all_ranks_and_the_group_goes_on(ranks):
    def body(group):
        mine = layer(SyncBatchNorm, process_group=group)
        with pytest.raises(dist.InvalidArgument, match="one element a channel over all ranks"):
            mine(sample_of(0, 1 - group.rank()))
        assert mine.num_batches_tracked == 0
        for wrong, why in [(torch.randn(3), "1 dimensions"), (torch.randn(3, 4), "4 channels"),
                           (torch.ones(3, CHANNELS, dtype=torch.long), "floating point")]:
            with pytest.raises(dist.InvalidArgument, match=why):
                mine(wrong)
        mine(sample_of(group.rank(), 2))
        assert mine.num_batches_tracked == 1

    ranks.all_well(2, body)
    with pytest.raises(TypeError, match="ProcessGroup was expected, not int"):
        SyncBatchNorm(CHANNELS, process_group=3)


@pytest.mark.parametrize("what", ["layer", "collective"])
def test_an_error_in_the_backward_pass_is_gradwires(ranks, what):
    def body(group):
        x = sample_of(group.rank(), 3).requires_grad_()
        y = layer(SyncBatchNorm, process_group=group)(x) if what == "layer" else dist.nn.functional.all_reduce(x, group=group)
        if group.rank() == 0:
            group.abort("on purpose")
        with pytest.raises(dist.PeerError if group.rank() else dist.AbortedError, match="on purpose"):
            y.square().sum().backward()

    ranks.all_well(2, body)


def test_conversion_keeps_tensors_places_and_modes():
    twice = nn.BatchNorm1d(CHANNELS)
    net = nn.ModuleDict({
        "list": nn.ModuleList([twice, nn.Sequential(nn.BatchNorm2d(3, affine=False).eval(), nn.Linear(2, 2))]),
        "again": twice, "theirs": nn.SyncBatchNorm(2, track_running_stats=False), "ours": SyncBatchNorm(4),
        "instance": nn.InstanceNorm1d(3),
    })
    before = dict(net.state_dict(keep_vars=True))
    ours = net["ours"]
    assert SyncBatchNorm.convert_sync_batchnorm(net) is net
    assert isinstance(net["again"], SyncBatchNorm) and net["again"] is net["list"][0]
    assert isinstance(net["theirs"], SyncBatchNorm) and net["theirs"].running_mean is None
    assert net["ours"] is ours and isinstance(net["instance"], nn.InstanceNorm1d)
    inner = net["list"][1][0]
    assert isinstance(inner, SyncBatchNorm) and not inner.training and net["again"].training and inner.weight is None
    after = dict(net.state_dict(keep_vars=True))
    assert list(before) == list(after)
    assert all(before[name] is after[name] for name in before), "an optimizer would hold other tensors"
    alone = nn.BatchNorm3d(2, eps=0.5, momentum=None)
    made = SyncBatchNorm.convert_sync_batchnorm(alone)
    assert (made.eps, made.momentum, made.weight) == (0.5, None, alone.weight)


def test_a_lazy_layer_is_refused_by_name_and_nothing_changes():
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Sequential(nn.LazyBatchNorm1d()))
    with pytest.raises(dist.InvalidArgument, match="'1.0' has no shape yet"):
        SyncBatchNorm.convert_sync_batchnorm(net)
    assert type(net[0]) is nn.BatchNorm1d


def test_copies_and_pickles(ranks):
    def body(group):
        mine = layer(SyncBatchNorm, process_group=group)
        mine(sample_of(group.rank(), 2))
        copied = copy.deepcopy(nn.Sequential(mine))[0]
        assert copied.process_group is group and copied.weight is not mine.weight
        assert torch.equal(copied(sample_of(group.rank(), 2, seed=1)), mine(sample_of(group.rank(), 2, seed=1)))
        assert torch.equal(copied.running_var, mine.running_var)

    ranks.all_well(2, body)


def test_ranks_that_disagree_about_gradients_are_refused(ranks):
    def body(group):
        mine = layer(SyncBatchNorm, process_group=group)
        with torch.set_grad_enabled(group.rank() == 0), pytest.raises(dist.InvalidArgument, match="in one mode on all ranks"):
            mine(sample_of(group.rank(), 2).requires_grad_())
        assert mine.num_batches_tracked == 0 and not mine.running_mean.any()

    ranks.all_well(2, body)


def test_a_rank_may_keep_a_copy_alone(ranks):
    def body(group):
        mine = layer(SyncBatchNorm, process_group=group)
        mine(sample_of(group.rank(), 2))
        kept = copy.deepcopy(mine) if group.rank() == 0 else None
        del mine
        wanted = layer(nn.BatchNorm1d)(torch.cat([sample_of(rank, 2, seed=1) for rank in range(2)]))
        again = layer(SyncBatchNorm, process_group=group)(sample_of(group.rank(), 2, seed=1))
        torch.testing.assert_close(again, wanted[2 * group.rank():2 * group.rank() + 2])
        del kept

    ranks.all_well(2, body)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_types_are_as_exact_as_they_can_be(ranks, dtype):
    samples = [sample_of(rank, 4).to(dtype) for rank in range(2)]
    wanted = layer(nn.BatchNorm1d)(torch.cat(samples).double())

    def body(group):
        mine = layer(SyncBatchNorm, process_group=group).float()
        y = mine(samples[group.rank()])
        assert y.dtype == dtype
        torch.testing.assert_close(y, wanted[4 * group.rank():4 * group.rank() + 4].to(dtype))

    ranks.all_well(2, body)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_parameters_and_buffers_may_be_of_different_types(ranks, dtype, size):
    whole = torch.randn(6, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 1
    wanted = nn.BatchNorm1d(3).double()
    trained = wanted(whole)
    evaluated = wanted.eval()(whole)
    tolerance = {"rtol": 0, "atol": 1e-6 if dtype == torch.float64 else 0.05}

    def body(group):
        layer = SyncBatchNorm(3, process_group=group)
        for parameter in layer.parameters():
            parameter.data = parameter.data.to(dtype)
        part = slice(group.rank(), None, size)
        output = layer(whole[part].to(dtype))
        output.square().sum().backward()
        assert output.dtype == layer.weight.grad.dtype == dtype and layer.running_var.dtype == torch.float32
        torch.testing.assert_close(output.double(), trained[part], **tolerance)
        torch.testing.assert_close(layer.running_var.double(), wanted.running_var, **tolerance)
        torch.testing.assert_close(layer.eval()(whole[part].to(dtype)).double(), evaluated[part], **tolerance)

    ranks.all_well(size, body)


def test_pickles_and_states_are_a_batch_norms():
    mine = layer(SyncBatchNorm)
    loaded = pickle.loads(pickle.dumps(mine))
    x = sample_of(0, 4)
    assert torch.equal(loaded(x), mine(x))
    plain = layer(nn.BatchNorm1d)
    plain.load_state_dict(mine.state_dict())
    assert torch.equal(plain.eval()(x), mine.eval()(x))


# The optimizers of PyTorch import it at their first step.
forks.import_first("torch._dynamo")

# Under PyTorch's DistributedDataParallel, over the default group of torch.distributed; argument: the backend.
UNDER_PYTORCHS_DDP = """
import os
import sys
import torch
import torch.distributed
from gradwire.nn import SyncBatchNorm

def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)).double()

def train(net, batch_of):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(4):
        optimizer.zero_grad()
        net(batch_of(step)).square().mean().backward()
        optimizer.step()

rank = int(os.environ["RANK"])
torch.distributed.init_process_group(sys.argv[1], f"file://{os.environ['MEET']}", rank=rank, world_size=2)
batches = torch.randn(4, 2, 5, 3, dtype=torch.double, generator=torch.Generator().manual_seed(2))
serial = model()
train(serial, lambda step: batches[step].flatten(0, 1))
for group in (None, torch.distributed.new_group()):
    net = SyncBatchNorm.convert_sync_batchnorm(model(), group)
    train(torch.nn.parallel.DistributedDataParallel(net), lambda step: batches[step, rank])
    for mine, theirs in zip([*net.parameters(), *net.buffers()], [*serial.parameters(), *serial.buffers()], strict=True):
        torch.testing.assert_close(mine, theirs)
torch.distributed.barrier()
print("trained alike")
torch.distributed.destroy_process_group()
"""


def test_evaluation_compiles_in_one_graph():
    mine = layer(SyncBatchNorm).eval()
    x = sample_of(0, 4)
    assert torch.equal(torch.compile(mine, backend="eager", fullgraph=True)(x), mine(x))


@pytest.mark.parametrize("backend", ["gradwire", "gloo"])
def test_it_works_under_pytorchs_ddp(run_script, backend):
    for process in run_script(UNDER_PYTORCHS_DDP, 2, backend):
        printed, _ = process.communicate(timeout=120)
        assert process.returncode == 0 and "trained alike" in printed, printed
