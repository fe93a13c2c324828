// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <utility>

#include "gradwire/backend/generic/tree_entry_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/strings.h"

namespace gradwire::generic {
namespace {

// What a message begins with. Calls are followed by their runs and, when all made one call, by the inputs; missing
// ranks by their numbers.
struct Head {
  enum class Kind : std::uint32_t { calls = 1, missing = 2 };
  Kind kind = Kind::calls;
  std::uint32_t count = 0;  // of runs or ranks
  std::uint64_t input_bytes = 0;
};
static_assert(sizeof(Head) == 16);

Head head_of(std::span<const std::byte> message, int from) {
  Head head;
  if (message.size() >= sizeof(head)) std::memcpy(&head, message.data(), sizeof(head));
  const bool calls = head.kind == Head::Kind::calls;
  const std::uint64_t listed = head.count * std::uint64_t{calls ? sizeof(Run) : sizeof(std::int32_t)};
  if (message.size() != sizeof(head) + listed + (calls ? head.input_bytes : 0)) {
    throw InternalError(concat("what rank ", from, " told at the entry of a collective makes no sense"));
  }
  return head;
}

int parent_of(int rank) { return rank == 0 ? -1 : rank & (rank - 1); }

// Long enough that ranks which are about to come are not told of, short enough that all have heard by a deadline.
Milliseconds moment_before(Deadline deadline) {
  return std::clamp(deadline.remaining() / 64, Milliseconds(1), Milliseconds(50));
}

}  // namespace

TreeEntry::TreeEntry(int rank, int size, std::size_t most_input, const Links& links, Deadline deadline)
    : rank_(rank),
      size_(size),
      most_input_(most_input),
      links_(links),
      deadline_(deadline),
      moment_(moment_before(deadline)),
      longest_gap_(std::clamp(deadline.remaining() / 256, moment_, Milliseconds(2000))),
      note_gap_(moment_),
      next_note_(Deadline::after(moment_)),
      parent_(parent_of(rank)) {
  for (int distance = 1; rank + distance < size && (rank & distance) == 0; distance *= 2) {
    Child child;
    child.rank = rank + distance;
    child.count = std::min(distance, size - child.rank);
    below_ += child.count;
    children_.push_back(std::move(child));
  }
}

std::size_t TreeEntry::capacity(int ranks) const noexcept {
  return sizeof(Head) + static_cast<std::size_t>(ranks) * (sizeof(Run) + most_input_);
}

std::size_t TreeEntry::memory_bytes() const noexcept {
  std::size_t bytes = capacity(below_) + (parent_ < 0 ? 0 : capacity(size_));
  for (const Child& child : children_) bytes += capacity(child.count);
  return bytes;
}

void TreeEntry::run(const Fingerprint& call, const void* input, std::size_t bytes, std::span<std::byte> memory) {
  const auto cut = [&memory](std::size_t length) {
    const auto piece = memory.first(length);
    memory = memory.subspan(length);
    return piece;
  };
  own_ = cut(capacity(below_));
  if (parent_ >= 0) verdict_ = cut(capacity(size_));
  for (Child& child : children_) {
    child.memory = cut(capacity(child.count));
    child.receive = links_.receive(child.memory.data(), child.memory.size(), child.rank);
  }
  gather();
  merge(call, input, bytes);
  std::span<const std::byte> message = own_.first(own_bytes_);
  if (parent_ >= 0) {
    send(message, parent_);
    hear_verdict();
    message = verdict_.first(own_bytes_);
  }
  // The child with the most ranks below it first: it has the longest way to go.
  for (auto child = children_.rbegin(); child != children_.rend(); ++child) send(message, child->rank);
  for (const auto& [peer, request] : sends_) {
    if (request->done_by(deadline_)) continue;
    throw TimeoutError(concat("rank ", peer, " took nothing by the deadline"), {peer});
  }
  for (const auto& [peer, request] : sends_) request->wait(deadline_);
}

// --- up ------------------------------------------------------------------------------------------------------------

void TreeEntry::gather() {
  for (;;) {
    Request* awaited = nullptr;
    std::vector<int> missing;
    for (Child& child : children_) {
      if (child.bytes > 0 || take(child.receive, child.memory, child.rank, child.bytes, child.missing)) continue;
      awaited = child.receive.get();
      if (child.missing.empty()) missing.push_back(child.rank);
      missing.insert(missing.end(), child.missing.begin(), child.missing.end());
    }
    if (awaited == nullptr) return;
    linger(*awaited, missing);
  }
}

bool TreeEntry::take(std::shared_ptr<Request>& receive, std::span<std::byte> memory, int from, std::size_t& bytes,
                     std::vector<int>& missing) {
  while (receive->done()) {
    const std::span<const std::byte> message = memory.first(receive->wait(deadline_).bytes);
    const Head head = head_of(message, from);
    if (head.kind == Head::Kind::calls) {
      bytes = message.size();
      return true;
    }
    missing.resize(head.count);
    std::memcpy(missing.data(), message.data() + sizeof(head), message.size() - sizeof(head));
    receive = links_.receive(memory.data(), memory.size(), from);
  }
  return false;
}

void TreeEntry::merge(const Fingerprint& call, const void* input, std::size_t bytes) {
  std::size_t used = bytes;  // of the inputs
  calls_.push_back({call, rank_, 1});
  std::byte* const inputs = own_.data() + sizeof(Head) + sizeof(Run);
  if (bytes > 0) std::memcpy(inputs, input, bytes);
  for (const Child& child : children_) append(child.memory.first(child.bytes), used);
  const bool alike = calls_.size() == 1 && call.refused == 0;
  const Head head{Head::Kind::calls, static_cast<std::uint32_t>(calls_.size()), alike ? used : 0};
  std::memcpy(own_.data(), &head, sizeof(head));
  std::memcpy(own_.data() + sizeof(head), calls_.data(), calls_.size() * sizeof(Run));
  own_bytes_ = sizeof(head) + calls_.size() * sizeof(Run) + head.input_bytes;
  inputs_ = alike ? inputs : nullptr;
}

void TreeEntry::append(std::span<const std::byte> message, std::size_t& used) {
  Head head;
  std::memcpy(&head, message.data(), sizeof(head));
  const std::byte* at = message.data() + sizeof(head);
  for (std::uint32_t index = 0; index < head.count; ++index, at += sizeof(Run)) {
    Run run;
    std::memcpy(&run, at, sizeof(run));
    if (calls_.back().call == run.call) {
      calls_.back().count += run.count;
    } else {
      calls_.push_back(run);
    }
  }
  if (calls_.size() > 1 || head.input_bytes == 0) return;
  std::memcpy(own_.data() + sizeof(Head) + sizeof(Run) + used, at, head.input_bytes);
  used += head.input_bytes;
}

// --- down ----------------------------------------------------------------------------------------------------------

void TreeEntry::hear_verdict() {
  std::shared_ptr<Request> receive = links_.receive(verdict_.data(), verdict_.size(), parent_);
  std::vector<int> missing;
  while (!take(receive, verdict_, parent_, own_bytes_, missing)) {
    linger(*receive, missing.empty() ? std::vector<int>{parent_} : missing);
  }
  Head head;
  std::memcpy(&head, verdict_.data(), sizeof(head));
  calls_.resize(head.count);
  std::memcpy(calls_.data(), verdict_.data() + sizeof(head), head.count * sizeof(Run));
  std::int64_t ranks = 0;
  for (const Run& run : calls_) ranks = run.first == ranks && run.count > 0 ? ranks + run.count : -1;
  if (ranks != size_) throw InternalError(concat("rank ", parent_, " told of other ranks than there are"));
  inputs_ = head.input_bytes > 0 ? verdict_.data() + sizeof(head) + sizeof(Run) : nullptr;
}

// --- who is missing ------------------------------------------------------------------------------------------------

void TreeEntry::linger(Request& request, const std::vector<int>& missing) {
  if (next_note_.expired() && missing != told_missing_) {
    next_note_ = Deadline::after(note_gap_);
    note_gap_ = std::min(2 * note_gap_, longest_gap_);
    const std::size_t listed = missing.size();
    const Head head{Head::Kind::missing, static_cast<std::uint32_t>(listed), 0};
    std::vector<std::byte>& note = notes_.emplace_back(sizeof(head) + listed * sizeof(std::int32_t));
    std::memcpy(note.data(), &head, sizeof(head));
    std::memcpy(note.data() + sizeof(head), missing.data(), listed * sizeof(std::int32_t));
    if (parent_ >= 0 && own_bytes_ == 0) send(note, parent_);
    for (const Child& child : children_) send(note, child.rank);
    told_missing_ = missing;
  }
  if (request.done_by(Deadline::after(moment_).earlier(deadline_))) return;
  throw_if_interrupted("the entry of a collective");
  if (!deadline_.expired()) return;
  throw TimeoutError(concat("nothing came from ", name_ranks(missing), " by the deadline"), missing);
}

void TreeEntry::send(std::span<const std::byte> message, int to) {
  sends_.emplace_back(to, links_.send(message.data(), message.size(), to));
}

}  // namespace gradwire::generic
