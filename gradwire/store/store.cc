// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/store/store.h"

#include <algorithm>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire {

std::vector<std::string> Store::list_keys() { throw UnsupportedError("list_keys: this store cannot list its keys"); }

Store::Value Store::queue_pop_within(const std::string& queue, Milliseconds timeout) {
  constexpr Milliseconds kLook{10};
  const Deadline deadline = Deadline::after(timeout);
  while (queue_length(queue) == 0) {
    if (deadline.expired())
      throw TimeoutError(concat("queue_pop_within: timeout after ", timeout.count(),
                                " ms of waiting for an element of the queue '", queue, "'"));
    std::this_thread::sleep_for(std::min(kLook, deadline.remaining()));
  }
  return queue_pop(queue);
}

}  // namespace gradwire
