# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""DilocoAverager and GossipAverager against serial programs that play all workers, bit for bit, with ranks as threads."""
import copy
import io
import os
import pathlib
import pickle
import subprocess
import sys
from functools import partial

import pytest
import torch
from torch import nn

import gradwire
from conftest import ROOT, block_of
from gradwire import distributed as dist
from gradwire.distributed.algorithms.model_averaging import averagers
from gradwire.distributed.optim import DilocoAverager, GossipAverager, PostLocalSGDOptimizer

GUARD = 240
BUILD = pathlib.Path(os.environ.get("GRADWIRE_BUILD", ROOT / "build"))
INNER = partial(torch.optim.AdamW, lr=0.05)
# 63, 31, 40, 11 and 9 elements; the numbers of their fragments when there are three, written down by hand.
SHAPES = [(9, 7), (31,), (8, 5), (11,), (3, 3)]
THREE = [0, 1, 2, 2, 2]
ADAM = partial(torch.optim.Adam, lr=0.1)
SCHEDULES = {
    "every step": {"inner_steps": 1},
    "plain": {"inner_steps": 4},
    "outer numbers": {"inner_steps": 4, "outer_lr": 0.5, "outer_momentum": 0.0},
    "fragments": {"inner_steps": 6, "fragments": 3},
    "overlap": {"inner_steps": 5, "overlap": 3},
    "streaming": {"inner_steps": 7, "fragments": 3, "overlap": 6, "mixing": 0.5},
    "outer Adam": {"inner_steps": 3, "fragments": 3, "mixing": 0.25, "outer": ADAM},
}


def weights(seed=1):
    generator = torch.Generator().manual_seed(seed)
    kinds = [torch.float32, torch.float32, torch.float32, torch.float64, torch.float32]
    return [nn.Parameter(torch.randn(shape, generator=generator).to(kind)) for shape, kind in zip(SHAPES, kinds)]


def train(parameters, optimizer, worker, step):
    """A step with gradients that depend on parameters, worker and step."""
    optimizer.zero_grad()
    generator = torch.Generator().manual_seed(100 * step + worker)
    sum((p * p.detach().sin() * torch.randn(p.shape, generator=generator)).sum() for p in parameters).backward()
    optimizer.step()


def bits(tensors):
    return [tensor.detach().clone() for tensor in tensors]


def same(some, others):
    return len(some) == len(others) and all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(some, others, strict=True))


class Diloco:
    """All workers in one thread, as the papers' pseudo code has them."""

    def __init__(self, size, inner_steps, fragments=1, overlap=0, mixing=0.0, outer=None, outer_lr=0.7, outer_momentum=0.9):
        self.inner_steps, self.fragments, self.overlap, self.mixing = inner_steps, fragments, overlap, mixing
        self.own = [weights() for _ in range(size)]
        self.inner = [INNER(own) for own in self.own]
        self.outer = [parameter.detach().clone() for parameter in weights()]
        outer = outer or partial(torch.optim.SGD, lr=outer_lr, momentum=outer_momentum, nesterov=outer_momentum > 0)
        self.optimizers = [outer([each]) for each in self.outer]
        self.sent = [None] * len(self.outer)
        self.count = 0

    def is_turn(self, i, count):
        number = THREE[i] if self.fragments == 3 else 0
        turn = (number + 1) * self.inner_steps // self.fragments
        return count > 0 and count % self.inner_steps == turn % self.inner_steps

    @torch.no_grad()
    def arrive(self, i):
        self.outer[i].grad = self.sent[i]
        self.optimizers[i].step()
        for own in self.own:
            if self.mixing == 0:
                own[i].copy_(self.outer[i])
            else:
                own[i].mul_(self.mixing).add_(self.outer[i], alpha=1 - self.mixing)

    def step(self):
        for worker, (own, inner) in enumerate(zip(self.own, self.inner)):
            train(own, inner, worker, self.count)
        self.count += 1
        for i in range(len(self.outer)):
            if self.overlap and self.is_turn(i, self.count - self.overlap):
                self.arrive(i)
            if self.is_turn(i, self.count):
                with torch.no_grad():
                    parts = [(self.outer[i] - own[i]) / len(self.own) for own in self.own]
                self.sent[i] = sum(parts[1:], parts[0])
                if not self.overlap:
                    self.arrive(i)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", SCHEDULES)
def test_diloco_has_the_bits_of_the_serial_program(ranks, name, size):
    schedule = SCHEDULES[name]
    expected = Diloco(size, **schedule)
    own, outer = [], []
    for _ in range(20):
        expected.step()
        own.append([bits(each) for each in expected.own])
        outer.append(bits(expected.outer))

    def body(group):
        parameters = weights(seed=1 + group.rank())  # those of rank 0 count
        diloco = DilocoAverager(parameters, process_group=group, **schedule)
        optimizer = PostLocalSGDOptimizer(INNER(parameters), diloco)
        for step in range(20):
            train(parameters, optimizer, group.rank(), step)
            assert same(parameters, own[step][group.rank()]), step
            assert same(diloco.outer_parameters(), outer[step]), step
        assert diloco.step == 20 and diloco.payload_bytes() > 0 or size == 1

    ranks.all_well(size, body)


def test_schedulers_and_hooks_of_steps_take_the_wrapped_optimizer(ranks):
    def body(group):
        parameters = weights()
        inner = torch.optim.SGD(parameters, 0.1, momentum=0.9)
        optimizer = PostLocalSGDOptimizer(inner, averagers.PeriodicModelAverager(4, 100, process_group=group))
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=10)
        rates = []
        optimizer.register_step_post_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
        for step in range(3):
            train(parameters, optimizer, 0, step)
            schedule.step()
        assert len(rates) == 3 and rates[0] < rates[1] < rates[2]
        assert optimizer.defaults["momentum"] == inner.defaults["momentum"]
        with pytest.raises(AttributeError, match="nothing"):
            optimizer.nothing  # noqa: B018

    ranks.all_well(1, body)


def test_the_end_of_training_waits_for_exchanges_under_way(ranks):
    expected = Diloco(2, inner_steps=4, overlap=3)
    for _ in range(9):
        expected.step()
    for i in range(len(SHAPES)):
        expected.arrive(i)

    def body(group):
        parameters = weights()
        diloco = DilocoAverager(parameters, 4, overlap=3, process_group=group)
        optimizer = PostLocalSGDOptimizer(INNER(parameters), diloco)
        for step in range(9):
            train(parameters, optimizer, group.rank(), step)
        diloco.finish_exchanges()
        assert same(diloco.outer_parameters(), expected.outer) and same(parameters, expected.own[group.rank()])

    ranks.all_well(2, body)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_gossip_has_the_bits_of_the_serial_program(ranks, size):
    steps, every, momentum, lr, gamma, seed = 16, 3, 0.6, 0.8, 0.9, 7
    own = [weights() for _ in range(size)]
    inner = [INNER(each) for each in own]
    slow = [bits(each) for each in own]
    speed = [[torch.zeros_like(tensor) for tensor in each] for each in slow]
    expected = []
    for step in range(steps):
        for worker in range(size):
            train(own[worker], inner[worker], worker, step)
        if (step + 1) % every == 0:
            pairs = gradwire._C.optim.gossip_pairs(size, seed, step // every)
            difference = [[s - o.detach() for s, o in zip(slow[w], own[w])] for w in range(size)]
            mean = lambda of, w, i: of[w][i] if pairs[w] == w else (of[w][i] + of[pairs[w]][i]) / 2  # noqa: E731
            speed = [[speed[w][i] * momentum - mean(difference, w, i) * lr - (slow[w][i] - mean(slow, w, i)) * gamma
                      for i in range(len(SHAPES))] for w in range(size)]
            slow = [[s + v for s, v in zip(slow[w], speed[w])] for w in range(size)]
            with torch.no_grad():
                for worker in range(size):
                    for parameter, value in zip(own[worker], slow[worker]):
                        parameter.copy_(value)
        expected.append(([bits(each) for each in own], slow))

    def body(group):
        parameters = weights(seed=1 + group.rank())
        gossip = GossipAverager(parameters, every, momentum=momentum, lr=lr, gamma=gamma, seed=seed, process_group=group)
        optimizer = PostLocalSGDOptimizer(INNER(parameters), gossip)
        for step in range(steps):
            train(parameters, optimizer, group.rank(), step)
            assert same(parameters, expected[step][0][group.rank()]), step
            assert same(gossip.slow_parameters(), expected[step][1][group.rank()]), step

    ranks.all_well(size, body)


DILOCO = {"inner_steps": 6, "fragments": 3, "overlap": 4, "mixing": 0.5}
AVERAGERS = {
    "diloco": partial(DilocoAverager, **DILOCO),
    "diloco int4": partial(DilocoAverager, hook="int4:memory=error_feedback", **DILOCO),
    "diloco outer Adam": partial(DilocoAverager, outer=ADAM, **DILOCO),
    "gossip": partial(GossipAverager, inner_steps=4),
}


@pytest.mark.parametrize("name", AVERAGERS)
def test_a_run_continues_from_its_state_with_the_same_bits(ranks, name):
    make = AVERAGERS[name]

    def body(group):
        def made(seed):
            parameters = weights(seed)
            return parameters, PostLocalSGDOptimizer(INNER(parameters), make(parameters, process_group=group))

        first, optimizer = made(1)
        for step in range(13):  # in the midst of an exchange
            train(first, optimizer, group.rank(), step)
        file = io.BytesIO()
        torch.save({"parameters": bits(first), "optimizer": optimizer.state_dict()}, file)
        again, second = made(2)
        train(again, second, group.rank(), 99)
        saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
        with torch.no_grad():
            for parameter, value in zip(again, saved["parameters"], strict=True):
                parameter.copy_(value)
        second.load_state_dict(saved["optimizer"])
        second.load_state_dict(second.state_dict())
        assert second.averager.step == 13
        for step in range(13, 30):
            train(first, optimizer, group.rank(), step)
            train(again, second, group.rank(), step)
            assert same(again, first), step

    ranks.all_well(2, body)


def test_what_cannot_work_is_refused(ranks):
    def body(group):
        def refused(match, kind=DilocoAverager, parameters=None, error=dist.InvalidArgument, **options):
            with pytest.raises(error, match=match):
                kind(weights() if parameters is None else parameters, process_group=group, **options)

        refused("no parameters", parameters=[])
        refused("floating-point", parameters=[torch.ones(2, dtype=torch.long)])
        refused("inner_steps is 0", inner_steps=0)
        refused("fragments is 4", inner_steps=3, fragments=4)
        refused("overlap is 3", inner_steps=3, overlap=3)
        refused("mixing is 1", mixing=1)
        refused("int5", hook="int5")
        refused("hook is a tuple; give the text", hook=gradwire.hooks.make("int8"))
        refused("outer_lr is -1", outer_lr=-1)
        refused("outer_momentum is 1", outer_momentum=1)
        refused("in place of outer_lr and outer_momentum", outer=ADAM, outer_lr=1)
        refused("inner_steps of rank 0: 10, of rank 1: 11", error=dist.MismatchError, inner_steps=10 + group.rank())
        refused(r"lr = 0\.7, .* of rank 1: .*lr = 1\.7", error=dist.MismatchError,
                outer_lr=0.7 + group.rank())
        refused(r"of rank 0: .*torch\.optim\.adam\.Adam \(lr = 0\.1, .* of rank 1: .*torch\.optim\.sgd\.SGD \(lr = 0\.1, ",
                error=dist.MismatchError, outer=(ADAM, partial(torch.optim.SGD, lr=0.1))[group.rank()])
        refused("inner_steps is 0", GossipAverager, inner_steps=0)
        refused("momentum is 1", GossipAverager, momentum=1)
        refused("lr is 0", GossipAverager, lr=0)
        refused("gamma is 2", GossipAverager, gamma=2)
        refused("seed of rank 0: 0, of rank 1: 1", GossipAverager, error=dist.MismatchError, seed=group.rank())

        parameters = weights()
        diloco = DilocoAverager(parameters, 2, process_group=group)
        with pytest.raises(dist.InvalidArgument, match="others at step 0"):
            diloco.average_parameters(weights())
        with pytest.raises(dist.InvalidArgument, match="the step is -1"):
            diloco.step = -1
        with pytest.raises(TypeError, match="save its state_dict"):
            pickle.dumps(diloco)
        with pytest.raises(TypeError, match="save its state_dict"):
            copy.deepcopy(diloco)
        optimizer = PostLocalSGDOptimizer(INNER(parameters), diloco)
        with pytest.raises(dist.InvalidArgument, match="no DilocoAverager saved it"):
            optimizer.load_state_dict(INNER(weights()).state_dict())
        other = GossipAverager(weights(), process_group=group)
        with pytest.raises(dist.InvalidArgument, match="no DilocoAverager saved it"):
            diloco.load_state_dict(other.state_dict())
        longer = DilocoAverager(weights(), 3, process_group=group)
        with pytest.raises(dist.InvalidArgument, match="inner_steps = 2, .* inner_steps = 3"):
            longer.load_state_dict(diloco.state_dict())
        refused("outer made a int", outer=lambda tensors: 3)

    ranks.all_well(2, body)
    with pytest.raises(dist.InvalidArgument, match="init_process_group"):
        DilocoAverager(weights())
    group = gradwire.elastic.Elastic(dist.HashStore()).group
    with pytest.raises(dist.UnsupportedError, match="use DilocoAverager in an elastic job"):
        GossipAverager(weights(), process_group=group)


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("fails", ["inner", "outer", "closure"])
def test_an_optimizer_that_fails_is_quoted_on_the_others(ranks, fails, overlap):
    class MayFail(torch.optim.SGD):
        def __init__(self, parameters, lr, fails):
            super().__init__(parameters, lr)
            self.fails = fails

        def step(self, closure=None):
            if self.fails:
                raise KeyError("out of luck")
            return super().step(closure)

    def body(group):
        at_fault = group.rank() == 1
        parameters = weights()
        outer = partial(MayFail, lr=0.5, fails=at_fault and fails == "outer")
        diloco = DilocoAverager(parameters, 3, overlap=overlap, outer=outer, process_group=group)
        optimizer = PostLocalSGDOptimizer(MayFail(parameters, 0.1, at_fault and fails == "inner"), diloco)

        def closure():
            if at_fault and fails == "closure":
                raise KeyError("out of luck")

        for _ in range(12):
            optimizer.step(closure)

    ranks(2, body)
    first, second = ranks.errors
    assert isinstance(second, KeyError)
    assert isinstance(first, dist.PeerError) and "out of luck" in str(first) and "rank 1" in str(first)


def test_the_learning_rate_of_a_scheduler_arrives(ranks):
    def body(group):
        parameters = weights()
        optimizer = PostLocalSGDOptimizer(torch.optim.SGD([{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.2}], 0.4),
                                          DilocoAverager(parameters, 2, process_group=group))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        for step in range(4):
            train(parameters, optimizer, group.rank(), step)
            scheduler.step()
        assert [each["lr"] for each in optimizer.optim.param_groups] == pytest.approx([0.1, 0.05])
        train(parameters, optimizer, group.rank(), 4)

    ranks.all_well(2, body)


def test_the_program_in_the_docs_runs(tmp_path):
    program = tmp_path / "far_apart.py"
    program.write_text(block_of("optim.md", "DilocoAverager("))
    job = subprocess.run([str(BUILD / "bin" / "gradwire-run"), "-n", "2", sys.executable, str(program)],
                         capture_output=True, text=True, timeout=GUARD, check=False, cwd=tmp_path)
    assert job.returncode == 0, job.stdout + job.stderr
    losses = [float(line.split()[-1]) for line in job.stdout.splitlines()]
    assert len(losses) == 2 and losses[0] == losses[1] < 0.1, job.stdout
