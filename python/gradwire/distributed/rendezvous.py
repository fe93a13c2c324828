# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The rendezvous without a group, and the program's own ways to meet."""
from __future__ import annotations

import operator
from datetime import timedelta
from typing import Any, Callable, Iterator

from gradwire import _C
from gradwire._C import Store
from gradwire._errors import InvalidArgument, UnsupportedError

__all__ = ["register_rendezvous_handler", "rendezvous"]

Handler = Callable[..., Iterator[tuple[Store, int, int]]]

_OWN_SCHEMES = ("env", "file", "tcp")
_handlers: dict[str, Handler] = {}


class _AlreadyThere(InvalidArgument, AssertionError):
    """What rendezvous() raises for numbers that are given twice: programs catch PyTorch's AssertionError there."""


def register_rendezvous_handler(scheme: str, handler: Handler) -> None:
    """Makes init_process_group() and rendezvous() call `handler` for the URLs that begin with `scheme`://.

    handler(url, **kwargs) is a generator function that yields the store, the rank and the world size. The rank and the
    world size that the caller gave stand in the URL, as ?rank=0&world_size=2. The keyword arguments are those of
    rendezvous(); init_process_group() gives `timeout`. Raises InvalidArgument for a scheme that has a handler.
    """
    if scheme in _OWN_SCHEMES or scheme in _handlers:
        raise InvalidArgument(f"Rendezvous handler for {scheme}:// already registered: register another scheme.")
    _handlers[scheme] = handler


def _scheme_of(url: str) -> str:
    return url.partition("://")[0]


def _has_handler(url: str) -> bool:
    return _scheme_of(url) in _handlers


def rendezvous(url: str, rank: int = -1, world_size: int = -1, **kwargs: Any) -> Iterator[tuple[Store, int, int]]:
    """A generator that yields the store, the rank and the world size that `url` and the environment name.

    url: "env://", "file:///path", "tcp://host:port", as init_process_group() takes them, or one with the scheme of
        register_rendezvous_handler(). `timeout`, a timedelta, bounds the rendezvous and calls on the store.

    Makes no group: hand the three to init_process_group(), or use the store alone. Raises InvalidArgument (a ValueError),
    StoreError, TimeoutError; all but a wrong scheme and numbers that are given twice at the first next().
    """
    if not isinstance(url, str):
        raise InvalidArgument(f"rendezvous: `url` must be a string; got {url!r}.")
    rank, world_size = operator.index(rank), operator.index(world_size)
    scheme = _scheme_of(url)
    if scheme not in _OWN_SCHEMES and scheme not in _handlers:
        raise InvalidArgument(
            f"No rendezvous handler for {scheme}://; known are {', '.join([*_OWN_SCHEMES, *_handlers])}.")
    given = [f"{name}={number}" for name, number in (("rank", rank), ("world_size", world_size)) if number != -1]
    in_url = url.partition("?")[2]
    if given and any(item.startswith(("rank=", "world_size=")) for item in in_url.split("&")):
        raise _AlreadyThere(f"The url: {url} has node-specific arguments(rank, world_size) already: leave them out, or the "
                            "arguments of the call.")
    if scheme not in _handlers:
        return _own_rendezvous(url, rank, world_size, **kwargs)
    if given:
        url += ("&" if in_url else "" if url.endswith("?") else "?") + "&".join(given)
    return _handlers[scheme](url, **kwargs)


def _own_rendezvous(
    url: str, rank: int, world_size: int, timeout: timedelta = _C.DEFAULT_TIMEOUT
) -> Iterator[tuple[Store, int, int]]:
    yield _C.rendezvous(url, rank, world_size, timeout)
    raise UnsupportedError(f"{url} is where ranks meet once: call rendezvous() again.")
