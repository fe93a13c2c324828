// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How the ranks of a large world learn who called what: the entry of every collective there (see barrier.cc).
//
// Algorithm: up and down a binomial tree of all ranks, with rank 0 at the top. Terms: N ranks, B bytes of input a rank.
// The parent of rank r > 0 is r without its lowest set bit; its children are r + 2^k for each 2^k below that bit.
// So the ranks below a rank follow it without a gap. Steps: ceil(log2 N) up, in which a rank tells its parent the calls
// and inputs of all ranks below it, and as many down, in which it hears those of all. A call is told once for all ranks
// in a row that made it, so a message has 64 bytes beside the inputs when all agree. Bytes on the wire: about
// (N - 1) (128 + N B). Each rank has at most 2 log2 N partners.
//
// A rank that waits for longer than a moment tells its parent and its children for whom: so all ranks come to know, and
// name when their deadlines pass, who is not there, and not who waits as they do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "gradwire/backend/backend.h"
#include "gradwire/backend/fingerprint_internal.h"

namespace gradwire::generic {

// Ranks first, first + 1, ... of which each made the same call.
struct Run {
  Fingerprint call;
  std::int32_t first = 0;
  std::int32_t count = 0;
};
static_assert(sizeof(Run) == 48);

// One entry. Used by one thread, once.
class TreeEntry {
 public:
  // How it sends and receives.
  struct Links {
    std::function<std::shared_ptr<Request>(const void* data, std::size_t bytes, int peer)> send;
    std::function<std::shared_ptr<Request>(void* data, std::size_t bytes, int peer)> receive;
  };
  // `most_input`: the most bytes of input that a rank sends along.
  TreeEntry(int rank, int size, std::size_t most_input, const Links& links, Deadline deadline);
  TreeEntry(const TreeEntry&) = delete;
  TreeEntry& operator=(const TreeEntry&) = delete;

  // The bytes that run() needs.
  std::size_t memory_bytes() const noexcept;
  // Returns when the calls of all ranks are known. `memory` is read until the entry is destroyed. Throws TimeoutError
  // that names the ranks that are not there, PeerError, AbortedError.
  void run(const Fingerprint& call, const void* input, std::size_t bytes, std::span<std::byte> memory);

  // What all ranks called, in rank order.
  const std::vector<Run>& calls() const noexcept { return calls_; }
  // All ranks' inputs, in rank order; null unless all ranks made the same call and no rank was refused memory.
  const std::byte* inputs() const noexcept { return inputs_; }

 private:
  struct Child {
    int rank = 0;
    int count = 0;  // ranks from the child on
    std::span<std::byte> memory;
    std::size_t bytes = 0;  // of what it told; 0: nothing yet
    std::shared_ptr<Request> receive;
    std::vector<int> missing;  // as far as it has told
  };

  std::size_t capacity(int ranks) const noexcept;
  void gather();
  void merge(const Fingerprint& call, const void* input, std::size_t bytes);
  void append(std::span<const std::byte> message, std::size_t& used);
  void hear_verdict();
  // Takes what has come; true when that is the message itself, and not a word about who is missing.
  bool take(std::shared_ptr<Request>& receive, std::span<std::byte> memory, int from, std::size_t& bytes,
            std::vector<int>& missing);
  // Waits a moment for `request`, and tells the others of `missing` where that is new. Throws when it is too late.
  void linger(Request& request, const std::vector<int>& missing);
  void send(std::span<const std::byte> message, int to);

  const int rank_;
  const int size_;
  const std::size_t most_input_;
  const Links& links_;
  const Deadline deadline_;
  const Milliseconds moment_;
  const Milliseconds longest_gap_;  // between two notes: ranks that trickle in are not told of one by one
  Milliseconds note_gap_;
  Deadline next_note_;
  const int parent_;  // -1: none
  int below_ = 1;     // ranks from this one on in the tree
  std::vector<Child> children_;
  std::span<std::byte> own_;      // for the message to the parent, or to the children of rank 0
  std::span<std::byte> verdict_;  // for the message of the parent
  std::vector<Run> calls_;
  const std::byte* inputs_ = nullptr;
  std::size_t own_bytes_ = 0;
  std::vector<int> told_missing_;
  std::list<std::vector<std::byte>> notes_;  // that are on their way
  std::vector<std::pair<int, std::shared_ptr<Request>>> sends_;
};

}  // namespace gradwire::generic
