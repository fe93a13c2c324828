# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The ready-made hooks from Python, with ranks as threads."""
import enum
import pickle

import pytest
import torch
from torch import nn

import gradwire
from gradwire import distributed as dist
from gradwire.distributed.algorithms.ddp_comm_hooks import DDPCommHookType, register_ddp_comm_hook
from gradwire.distributed.algorithms.ddp_comm_hooks import default_hooks, optimizer_overlap_hooks, powerSGD_hook
from gradwire.nn.parallel import DistributedDataParallel

from ddp_model import SIZE, assert_all_equal, assert_averages, batch_of, gradients, make_model


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


@pytest.mark.parametrize("steps", [0, 1])
def test_a_run_that_saves_before_its_buckets_are_in_order_goes_on_with_the_same_bits(ranks, steps):
    """A job may be told to save at any time: right after its first step, or right after it was resumed."""
    def body(group):
        def begun(state, order):
            # Buckets of 1 KB: which parameters share one depends on the order.
            ddp = DistributedDataParallel(make_model(), process_group=group, bucket_cap_mb=0.001)
            memory, hook = gradwire.hooks.make("top_k:ratio=0.3,memory=error_feedback")
            ddp.register_comm_hook(memory, hook)
            memory.load_state_dict(state)
            ddp.set_bucket_order(order)
            return ddp, memory

        def saved(ddp, memory):
            order = [ddp.next_bucket_order()]
            dist.broadcast_object_list(order, 0, group=group)
            return pickle.loads(pickle.dumps((memory.state_dict(), order[0])))

        fresh = gradwire.hooks.make("top_k:ratio=0.3,memory=error_feedback")[0].state_dict()
        whole, memory = begun(fresh, [])
        assert whole.next_bucket_order() == []
        gradients(whole, group, steps=1)
        first = saved(whole, memory)
        assert first[1] and not whole.bucket_order()
        resumed, memory = begun(*first)
        assert resumed.next_bucket_order() == first[1]
        for ddp in (resumed, whole)[:2 * steps]:
            gradients(ddp, group, steps=1)
        again, memory = begun(*saved(resumed, memory))
        results = gradients(whole, group), gradients(again, group)
        assert whole.next_bucket_order() == whole.bucket_order() == again.bucket_order() == first[1]
        return results

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
