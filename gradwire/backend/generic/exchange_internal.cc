// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/generic/exchange_internal.h"

#include <algorithm>

#include "gradwire/backend/generic/generic_channel.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::generic {

void Exchange::await_receives(Deadline deadline) {
  for (const Item& item : receives_) {
    Request::Status status;
    try {
      status = item.request->wait(deadline);
    } catch (const TimeoutError&) {
      const std::vector<int> missing = unfinished(receives_, item.peer);
      throw TimeoutError(concat("nothing came from ", name_ranks(missing), " by the deadline"), missing);
    }
    if (status.bytes != item.bytes && item.bytes != kAnyLength) {
      throw MismatchError(
          concat("rank ", item.peer, " sent ", status.bytes, " bytes where ", item.bytes, " were expected"));
    }
  }
  receives_.clear();
}

void Exchange::await_sends(Deadline deadline) {
  for (const Item& item : sends_) {
    try {
      item.request->wait(deadline);
    } catch (const TimeoutError&) {
      const std::vector<int> missing = unfinished(sends_, item.peer);
      throw TimeoutError(concat(name_ranks(missing), " took nothing by the deadline"), missing);
    }
  }
  sends_.clear();
}

template <typename Wait>
void Exchange::or_fail(const Wait& wait) {
  try {
    wait();
  } catch (...) {
    channel_->fail_call();
    throw;
  }
}

void Exchange::finish_receives(Deadline deadline) {
  or_fail([&] { await_receives(deadline); });
}

void Exchange::finish(Deadline deadline) {
  or_fail([&] {
    await_receives(deadline);
    await_sends(deadline);
  });
}

std::vector<int> Exchange::unfinished(const std::vector<Item>& items, int late) {
  std::vector<int> peers{late};
  for (const Item& item : items) {
    if (!item.request->done()) peers.push_back(item.peer);
  }
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

}  // namespace gradwire::generic
