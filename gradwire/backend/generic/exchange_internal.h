// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Sends and receives that are under way together, one step of a collective.
#pragma once

#include <memory>
#include <vector>

#include "gradwire/backend/backend.h"

namespace gradwire {
class GenericChannel;
}

namespace gradwire::generic {

// Collects requests of a collective of the channel and waits for them all. A wait that fails ends the channel at once.
// Destroying the exchange with requests unfinished cancels these, so the buffers they name are the caller's again
// however a step ends: the other ranks have heard the reason then, and do not take the cancelled message for it. Used
// by one thread.
class Exchange {
 public:
  explicit Exchange(GenericChannel& channel) : channel_(&channel) {}
  void add_send(int peer, std::shared_ptr<Request> request) { sends_.push_back({peer, 0, std::move(request)}); }
  void add_receive(int peer, std::size_t bytes, std::shared_ptr<Request> request) {
    receives_.push_back({peer, bytes, std::move(request)});
  }
  // A receive of at most `bytes` bytes.
  void add_receive_of_any_length(int peer, std::shared_ptr<Request> request) {
    receives_.push_back({peer, kAnyLength, std::move(request)});
  }

  // Waits until all are done and forgets them. Throws TimeoutError that names every peer still missing, PeerError,
  // AbortedError, MismatchError when a message is not as long as its receive expects.
  void finish(Deadline deadline);
  // The same for the receives only: sends may go on.
  void finish_receives(Deadline deadline);

 private:
  static constexpr std::size_t kAnyLength = ~std::size_t{0};
  struct Item {
    int peer;
    std::size_t bytes;
    std::shared_ptr<Request> request;
  };
  // The peers of those that are not done, and `late`, whose request has ended by its deadline.
  static std::vector<int> unfinished(const std::vector<Item>& items, int late);
  void await_receives(Deadline deadline);
  void await_sends(Deadline deadline);
  // Runs `wait`; what it throws goes on after the channel has ended.
  template <typename Wait>
  void or_fail(const Wait& wait);

  GenericChannel* channel_;
  std::vector<Item> sends_;
  std::vector<Item> receives_;
};

}  // namespace gradwire::generic
