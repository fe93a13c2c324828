# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""rendezvous() and its handlers, beside PyTorch's."""
import itertools
import threading
from datetime import timedelta

import pytest
import torch.distributed as td

from gradwire import distributed as dist
from gradwire._attempt import agree_on_attempt
from ports import free_port

MINUTE = timedelta(minutes=1)
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GRADWIRE_RENDEZVOUS", "TORCHELASTIC_RUN_ID")
numbers = itertools.count()


@pytest.fixture
def environment(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize("method", ["env", "file", "tcp"])
def test_yields_what_pytorchs_yields(method, environment, tmp_path):
    found = []
    for module in (td, dist):
        port = free_port()
        url = {"env": "env://", "file": f"file://{tmp_path}/{next(numbers)}?world_size=1",
               "tcp": f"tcp://127.0.0.1:{port}?world_size=1&use_libuv=0"}[method]
        for name, value in zip(VARIABLES, ("0", "1", "127.0.0.1", str(port)), strict=False):
            environment.setenv(name, value)
        if method != "env":
            url += "&rank=0"
        meeting = module.rendezvous(url, timeout=MINUTE)
        store, rank, world_size = next(meeting)
        store.set("key", "value")
        with pytest.raises(RuntimeError):
            next(meeting)
        found.append((store.get("key"), rank, world_size, type(store).__name__))
    assert found[0] == found[1]


def test_ranks_share_a_file(environment, tmp_path):
    stores = [next(dist.rendezvous(f"file://{tmp_path}/store", rank, 2)) for rank in range(2)]
    assert [(rank, size) for _, rank, size in stores] == [(0, 2), (1, 2)]
    stores[0][0].set("key", "value")
    assert stores[1][0].get("key") == b"value"


BAD = ["file://", "file:///tmp/a?world_size=1", "file:///tmp/a?rank=0", "tcp://127.0.0.1?rank=0&world_size=1",
       "tcp://127.0.0.1:23456?world_size=1", "tcp://127.0.0.1:23456?rank=0"]


@pytest.mark.parametrize("url", BAD)
def test_what_pytorchs_refuses_is_a_value_error(url, environment):
    for module in (td, dist):
        with pytest.raises(ValueError):
            next(module.rendezvous(url))


def test_wrong_calls_raise_what_pytorchs_raise(environment):
    for module in (td, dist):
        with pytest.raises(RuntimeError, match="^No rendezvous handler"):
            module.rendezvous("pigeon://")
        with pytest.raises(AssertionError, match="has node-specific arguments"):
            module.rendezvous("file://foo?rank=12&world_size=16", 12, 16)
        with pytest.raises(RuntimeError, match="already registered"):
            module.register_rendezvous_handler("tcp", lambda url: iter(()))


def test_a_group_may_meet_where_the_program_holds_the_store(environment):
    url = f"tcp://127.0.0.1:{free_port()}"
    store, rank, world_size = next(dist.rendezvous(url, 0, 1))
    store.set("key", "value")
    for _ in range(2):
        dist.init_process_group("shm", url, rank=rank, world_size=world_size)
        dist.destroy_process_group()
    assert store.get("key") == b"value"


def test_a_programs_own_way_to_meet():
    asked = []
    shared = dist.HashStore()

    def meet(url, **kwargs):
        asked.append((url, kwargs))
        query = dict(item.split("=") for item in url.partition("?")[2].split("&"))
        yield dist.PrefixStore(query["room"], shared), int(query["rank"]), int(query["world_size"])

    scheme = f"own{next(numbers)}"
    dist.register_rendezvous_handler(scheme, meet)
    with pytest.raises(dist.InvalidArgument, match="already registered"):
        dist.register_rendezvous_handler(scheme, meet)
    results = [None, None]

    def rank(number):
        dist.init_process_group("threads", f"{scheme}://?room=a", MINUTE, world_size=2, rank=number)
        gathered = [None, None]
        dist.all_gather_object(gathered, number)
        results[number] = gathered
        dist.destroy_process_group()

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [[0, 1], [0, 1]]
    assert sorted(url for url, _ in asked) == [f"{scheme}://?room=a&rank={number}&world_size=2" for number in range(2)]
    assert all(kwargs == {"timeout": MINUTE} for _, kwargs in asked)


def test_a_handler_that_yields_no_store_is_refused():
    yields = iter([iter(()), iter([(None, 0, 1)]), iter([(dist.HashStore(), -1, 1)])])
    scheme = f"empty{next(numbers)}"
    dist.register_rendezvous_handler(scheme, lambda url, **kwargs: next(yields))
    for _ in range(3):
        with pytest.raises(dist.InvalidArgument, match="yielded"):
            dist.init_process_group("shm", f"{scheme}://")
    dist.init_process_group("shm", store=dist.HashStore(), rank=0, world_size=1)
    with pytest.raises(dist.InvalidArgument, match="initialised already"):
        dist.init_process_group("shm", f"{scheme}://")
    dist.destroy_process_group()


def test_threads_may_share_a_server():
    first = dist.TCPStore("127.0.0.1", 0, 1, True, MINUTE, multi_tenant=True)
    second = dist.TCPStore("127.0.0.1", first.port, 1, True, MINUTE, multi_tenant=True)
    first.set("key", "value")
    assert second.get("key") == b"value"
    with pytest.raises(dist.StoreError):
        dist.TCPStore("127.0.0.1", first.port, 1, True, MINUTE)


def test_a_rank_whose_rank_zero_does_not_answer_says_so(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a job")
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    with pytest.raises(TimeoutError, match="init_process_group: rank 1 waited 0:00:00.020000 for rank 0"):
        agree_on_attempt(td.HashStore(), 1, 2, timedelta(milliseconds=20))
