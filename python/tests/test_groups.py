# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Groups, works, stores and reductions, in Python classes and out of them."""
import collections
import copy
import gc
import math
import os
import pickle
import re
import signal
import socket
import sys
import threading
import warnings
import weakref
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


def test_bad_arguments_are_value_errors_before_anything_is_sent(ranks):
    def body(group):
        with pytest.raises(ValueError, match="rank 7"):
            dist.broadcast(torch.ones(1), 7, group)
        with pytest.raises(dist.InvalidArgument):
            dist.all_reduce(torch.ones(2, dtype=torch.bool), dist.ReduceOp.AVG, group)
        with pytest.raises(dist.UnsupportedError):
            _C.ProcessGroup(0, 1).barrier()
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


@pytest.mark.parametrize("make", [dist.HashStore, "file", "tcp"])
def test_stores(make, tmp_path):
    if make == "file":
        store = dist.FileStore(str(tmp_path / "store"), 1)
    elif make == "tcp":
        store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True, timeout=timedelta(seconds=20))
        assert store.port > 0
    else:
        store = make()
    store.set("key", b"\x00\xff")
    assert store.get("key") == b"\x00\xff" and store.check(["key"]) and not store.check(["other"])
    assert store.add("count", 5) == 5 and store.add("count", -2) == 3
    assert store.compare_set("key", "other", "new") == b"\x00\xff"
    store.append("key", "!")
    assert store.multi_get(["key", "count"]) == [b"\x00\xff!", b"3"]
    store.queue_push("queue", "a")
    assert store.queue_len("queue") == 1 and store.queue_pop("queue") == b"a"
    for kind in (dist.QueueEmptyError, torch.distributed.QueueEmptyError):
        with pytest.raises(kind, match="queue"):
            store.queue_pop("queue", block=False)
    store.set("queue", "a key of this name is no element")
    with pytest.raises(dist.QueueEmptyError):
        store.queue_pop("queue", block=False)
    inner = dist.PrefixStore("in", store)
    inner.set("key", "x")
    assert store.get("in/key") == b"x" and inner.underlying_store is store
    assert store.delete_key("key") and not store.delete_key("key")
    store.set_timeout(timedelta(milliseconds=250))
    with pytest.raises(dist.DistStoreError, match="get: timeout after 250 ms of waiting for 'nowhere'"):
        store.get("nowhere")
    with pytest.raises(dist.DistStoreError, match="queue_pop: timeout after 250 ms of waiting for 'queue'"):
        store.queue_pop("queue")
    # A queue is no key, though check() and wait() take its name.
    store.queue_push("line", "element")
    with pytest.raises(dist.DistStoreError, match="get: timeout after 250 ms of waiting for 'line'"):
        store.get("line")
    store.set("line", "value")
    assert store.get("line") == b"value" and store.queue_pop("line") == b"element"
    store.set_timeout(timedelta(milliseconds=30))
    assert store.timeout == timedelta(milliseconds=30)
    assert store.list_keys() == ["count", "in/key", "line", "queue"] and inner.list_keys() == ["key"]
    with pytest.raises(dist.DistStoreError, match="nowhere"):
        store.get("nowhere")
    with pytest.raises(dist.TimeoutError):
        store.wait(["nowhere"], timedelta(milliseconds=20))


class CountingProxy:
    """Passes bytes between one client and a server, and counts the pieces that the client sends: its requests."""

    def __init__(self, port):
        self.requests = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._server = socket.create_connection(("127.0.0.1", port))
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        client, _ = self._listener.accept()
        threading.Thread(target=self._pass_on, args=(self._server, client), daemon=True).start()
        self._pass_on(client, self._server)

    def _pass_on(self, source, target):
        while data := source.recv(1 << 16):
            self.requests += target is self._server
            target.sendall(data)


def test_a_value_that_is_there_takes_one_request():
    server = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    server.set("key", "value")
    proxy = CountingProxy(server.port)
    client = dist.TCPStore("127.0.0.1", proxy.port)
    client.set("other", "")  # the connection is made
    before = proxy.requests
    client.set("other", "value")
    request = proxy.requests - before
    before = proxy.requests
    assert client.get("key") == b"value" and proxy.requests - before == request


@pytest.mark.parametrize("key, shown", [(b"\xff", r"\xff"), ("a\0b", r"a\x00b"), ("a\nb", r"a\x0ab"), ("ü", r"\xc3\xbc")])
def test_an_error_shows_a_key_of_any_bytes(key, shown):
    store = dist.HashStore()
    for timeout in timedelta(milliseconds=150), timedelta(milliseconds=1):
        store.set_timeout(timeout)
        waits = [lambda: store.get(key), lambda: store.wait([key]), lambda: store.multi_get([key]),
                 lambda: store.queue_pop(key)]
        for wait in waits:
            with pytest.raises(dist.TimeoutError, match=re.escape(f"'{shown}', which no rank has set")):
                wait()
        with pytest.raises(dist.QueueEmptyError, match=re.escape(f"the queue '{shown}' is empty")):
            store.queue_pop(key, block=False)


@pytest.mark.parametrize("make", [dist.HashStore, "file", "tcp"])
def test_the_longest_timedelta_is_a_timeout_of_a_store(make, tmp_path):
    longest = timedelta.max
    if make == "file":
        store = dist.FileStore(str(tmp_path / "store"), 1)
    elif make == "tcp":
        store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True, timeout=longest)
    else:
        store = make()
    for given in (longest, math.inf, 1e300):
        store.set_timeout(given)
        assert store.timeout > timedelta(days=365 * 1000)
        store.set("key", "value")
        store.queue_push("queue", "element")
        assert store.get("key") == b"value" and store.queue_pop("queue") == b"element"
        store.wait(["key"], given)
        for late in ("late", "late queue"):
            threading.Timer(0.05, (store.clone().queue_push if "queue" in late else store.clone().set), (late, "")).start()
            assert (store.queue_pop(late) if "queue" in late else store.get(late)) == b""
            store.delete_key(late)
    store.timeout = timedelta(days=2, seconds=3, milliseconds=4)
    assert store.timeout == timedelta(days=2, seconds=3, milliseconds=4)
    for wrong in (timedelta.min, timedelta(microseconds=-1), -math.inf):
        with pytest.raises(dist.InvalidArgument, match="is negative"):
            store.set_timeout(wrong)
    with pytest.raises(TypeError):
        store.set_timeout(math.nan)


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


def test_has_extended_api_is_what_the_store_under_the_prefix_says():
    class Extended(DictStore):
        def append(self, key, value):
            pass

        def multi_get(self, keys):
            return []

        def multi_set(self, keys, values):
            pass

    class Says(DictStore):
        def has_extended_api(self):
            return True

    for store, expected in ((dist.HashStore(), True), (DictStore(), False), (Extended(), True), (Says(), True)):
        assert store.has_extended_api() is expected
        assert dist.PrefixStore("a", dist.PrefixStore("b", store)).has_extended_api() is expected


class DictStore(dist.Store):
    """A store that Python made, for ranks as threads."""

    def __init__(self):
        super().__init__()
        self.data, self.changed = {}, threading.Condition()

    def set(self, key, value):
        with self.changed:
            self.data[key] = value if isinstance(value, bytes) else value.encode()
            self.changed.notify_all()

    def get(self, key):
        return self.data[key]

    def add(self, key, amount):
        with self.changed:
            self.data[key] = str(int(self.data.get(key, b"0")) + amount).encode()
            self.changed.notify_all()
            return int(self.data[key])

    def compare_set(self, key, expected, desired):
        with self.changed:
            if self.data.get(key, b"") == expected:
                self.data[key] = desired
                self.changed.notify_all()
            return self.data.get(key, expected)

    def wait(self, keys, timeout):
        with self.changed:
            if not self.changed.wait_for(lambda: all(key in self.data for key in keys), timeout.total_seconds()):
                raise dist.TimeoutError(f"no {keys}")

    def check(self, keys):
        return all(key in self.data for key in keys)


def test_list_keys_lists_what_pytorchs_stores_list():
    lists = []
    for kinds in (torch.distributed, dist):
        stores = [kinds.HashStore()]
        for prefix in ("a", "b", "a/b"):
            stores += [kinds.PrefixStore(prefix, store) for store in stores[:2]]
        for number, store in enumerate(stores):
            store.set(f"key{number}", "")
        lists.append([sorted(store.list_keys()) for store in stores])
    assert lists[0] == lists[1] and all(lists[0])


def test_a_store_in_python_may_list_its_keys():
    class Lists(DictStore):
        def list_keys(self):
            return list(self.data)

    inner = dist.PrefixStore("in", Lists())
    inner.set("key", "")
    inner.underlying_store.set("other", "")
    assert inner.list_keys() == ["key"]
    with pytest.raises(dist.UnsupportedError, match="list_keys"):
        dist.PrefixStore("in", DictStore()).list_keys()


def test_a_store_in_python_is_asked_for_several_keys_at_once():
    class Many(DictStore):
        def __init__(self):
            super().__init__()
            self.calls = []

        def multi_get(self, keys):
            self.calls.append(("multi_get", keys))
            return [self.data[key] for key in keys]

        def multi_set(self, keys, values):
            self.calls.append(("multi_set", keys, values))
            for key, value in zip(keys, values, strict=True):
                self.set(key, value)

    store = Many()
    prefixed = dist.PrefixStore("p", store)
    prefixed.multi_set(["a", "b"], [b"1", b"\xff"])
    assert prefixed.multi_get(["a", "b"]) == [b"1", b"\xff"]
    assert store.calls == [("multi_set", ["p/a", "p/b"], [b"1", b"\xff"]), ("multi_get", ["p/a", "p/b"])]
    # One by one, where the class has neither.
    prefixed = dist.PrefixStore("p", DictStore())
    prefixed.multi_set(["a", "b"], [b"1", b"2"])
    assert prefixed.multi_get(["a", "b"]) == [b"1", b"2"]


def test_a_store_in_python_need_not_have_append():
    class Contended(DictStore):
        def compare_set(self, key, expected, desired):
            if self.rivals and not key.endswith("/append"):
                self.data[key] = self.data.get(key, b"") + self.rivals.pop()
            return super().compare_set(key, expected, desired)

    store = Contended()
    store.rivals = []
    for number, handle in enumerate((store, dist.PrefixStore("p", store))):
        key = ("key", "p/key")[number]
        handle.append("key", "a")
        store.rivals = [b"c", b"b"]
        handle.append("key", b"\xff")
        handle.append("key", b"\xff")
        assert store.data[key] == b"abc\xff\xff"

    class Few(dist.Store):
        """PyTorch's appends by compare_set() alone."""

        data = collections.defaultdict(bytes)

        def compare_set(self, key, expected, desired):
            if self.data[key] == expected:
                self.data[key] = desired
            return self.data[key]

    store = Few()
    for part in (b"po", b"tato"):
        store.append("key", part)
    assert store.data["key"] == b"potato"


def test_a_store_in_python_needs_only_the_methods_that_are_called():
    class Plain(dist.Store):
        def get(self, key):
            return key.encode()

        def multi_get(self, keys):
            return [key.encode() for key in keys]

    prefixed = dist.PrefixStore("p", Plain())
    assert prefixed.get("a") == b"p/a" and prefixed.multi_get(["a", "b"]) == [b"p/a", b"p/b"]
    with pytest.raises(dist.UnsupportedError, match="set"):
        prefixed.set("a", "1")


@pytest.mark.parametrize("make", [dist.HashStore, DictStore, "tcp"])
def test_a_barrier_of_a_store_waits_for_all_callers_and_can_be_used_again(make):
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True) if make == "tcp" else make()
    store = dist.PrefixStore("part", store)
    came, errors = [], []

    def run(number):
        try:
            handle = store.clone() if make == "tcp" else store
            for round in range(3):
                came.append(round)
                handle.barrier("key", 3, timedelta(seconds=60))
                assert came.count(round) == 3
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    store.barrier("one", 1)
    late = "no .*two" if make is DictStore else "barrier timeout: after 50 ms 1 of 2 callers had come"  # its own words
    with pytest.raises(dist.DistStoreError, match=late):
        store.barrier("two", 2, timedelta(milliseconds=50))
    with pytest.raises(ValueError, match="world size of 0"):
        store.barrier("two", 0)


def test_either_kind_of_pytorchs_servers_is_this_one():
    for asked in (True, False):
        server = dist.TCPStore("127.0.0.1", 0, 1, is_master=True, use_libuv=asked)
        client = dist.TCPStore("127.0.0.1", server.port, use_libuv=not asked)
        server.set("key", "value")
        assert client.get("key") == b"value" and server.libuvBackend is client.libuvBackend is False


def test_a_store_in_python_makes_a_group():
    store = DictStore()
    results = [0.0] * 2

    def run(rank):
        group = dist.make_process_group("shm", store, rank, 2)
        tensor = torch.ones(1) * (rank + 1)
        dist.all_reduce(tensor, group=group)
        results[rank] = tensor.item()
        group.shutdown()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [3.0, 3.0]


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


def test_equal_values_that_are_appended_at_once_all_count():
    appended = 300

    def append(store):
        for _ in range(appended):
            store.append("key", b"x")

    store = DictStore()
    threads = [threading.Thread(target=append, args=(handle,)) for handle in (store, store)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert store.data["key"] == b"x" * 2 * appended


def test_an_append_says_who_keeps_it_waiting():
    store = DictStore()
    store.set_timeout(timedelta(milliseconds=20))
    store.set("key/append", "another client")
    with pytest.raises(dist.TimeoutError, match="'key/append'"):
        store.append("key", b"x")


@pytest.mark.parametrize("kind", ["hash", "file", "tcp"])
def test_a_handler_of_a_signal_may_use_the_store_that_its_thread_waits_for(kind, tmp_path):
    store = {"hash": dist.HashStore, "file": lambda: dist.FileStore(str(tmp_path / "store"), 1),
             "tcp": lambda: dist.TCPStore("127.0.0.1", 0, 1, is_master=True)}[kind]()
    other = store.clone()
    before = signal.signal(signal.SIGALRM, lambda *_: other.set("key", b"told"))
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        assert store.get("key") == b"told"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
