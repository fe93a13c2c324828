# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The end of the interpreter: threads of the C++ runtime end before it, so that none wants its lock afterwards."""
from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from typing import Any

from gradwire import _C

# Objects with threads of their own that use groups. They have a method _end().
_users: weakref.WeakSet[Any] = weakref.WeakSet()


def ends_before_groups(user: Any) -> None:
    """At the end of the interpreter `user._end()` is called, if it is still alive, before groups end."""
    _users.add(user)


def _at_exit() -> None:
    try:
        for user in list(_users):
            user._end()
        if _C.end_groups():
            _let_threads_end()
    finally:
        _C.end_of_interpreter()


def _let_threads_end() -> None:
    """Threads whose calls have ended drop what those have made, which C++ destroys without the interpreter's lock."""
    limit = time.monotonic() + 0.2
    for thread in threading.enumerate():
        is_ours = thread is not threading.current_thread() and not isinstance(thread, threading._DummyThread)
        if is_ours and thread.ident is not None:  # else it is being started
            thread.join(max(limit - time.monotonic(), 0))


# A child that a fork made has none of its parent's threads; what it makes itself ends with it.
os.register_at_fork(after_in_child=_users.clear)
atexit.register(_at_exit)
