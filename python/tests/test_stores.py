# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Stores, in Python classes and out of them."""
import collections
import math
import re
import signal
import socket
import sys
import threading
from datetime import timedelta

import pytest
import torch

from gradwire import distributed as dist

from dict_store import DictStore


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
