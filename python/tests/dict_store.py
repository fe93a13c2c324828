# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""A store that Python made, for tests."""
import threading

from gradwire import distributed as dist


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
