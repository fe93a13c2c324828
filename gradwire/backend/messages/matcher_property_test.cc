// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Proves, for random programs over simulated links, each run again from its seed: every message arrives once, whole and
// in the order of its channel, source and tag; nothing is written into a buffer, nor read from one, after its request
// has ended; what lies unreceived stays within the limits; a rank that crashes, at any step, leaves nobody waiting; and
// memory that is refused, at any allocation, loses nothing.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "gradwire/backend/messages/matcher_internal.h"
#include "gradwire/backend/messages/refused_memory_test_support.h"
#include "gradwire/backend/messages/simulated_wire_test_support.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::messages::matcher_property_test {
namespace {

using Direction = Message::Direction;

constexpr int kRanks = 3;
constexpr std::uint64_t kChannels = 2;
constexpr std::uint32_t kTags = 2;
constexpr std::size_t kCapacity = 600;
constexpr Limits kLimits{.eager_message = 100, .eager_bytes = 700, .offers = 4, .pulled_piece = 400};

// A request with its buffer and what is known of it.
struct Item {
  int owner = 0;
  std::uint64_t number = 0;  // in the order of posting, over all ranks
  MessagePtr message;
  std::vector<std::byte> buffer;
  std::vector<std::byte> left;  // a receive's buffer when it ended
  bool closed = false;          // its end was noticed
};

std::byte content(std::uint64_t number, std::size_t at) {
  return static_cast<std::byte>(number * 37 + at * 11 + (number >> 8));
}

class Simulation {
 public:
  explicit Simulation(std::uint64_t seed) : random_(seed), net_(kRanks, kCapacity) {
    for (int rank = 0; rank < kRanks; ++rank) {
      wires_.push_back(std::make_unique<SimulatedWire>(net_, rank));
      // In a third of the programs nobody lends memory, in another all do; in the others it is now and then refused.
      if (seed % 3 != 0) wires_.back()->least_lent = 300;
      wires_.back()->may_pull = [this, seed](int peer) {
        const bool may = peer != dead_ && (seed % 3 == 1 || pick(4) != 0);
        pulls_ += may ? 1 : 0;
        return may;
      };
      matchers_.push_back(std::make_unique<Matcher>(*wires_.back(), kLimits));
      auto members = std::make_shared<Members>();
      members->rank = rank;
      members->peers.resize(kRanks);
      std::iota(members->peers.begin(), members->peers.end(), 0);
      for (std::uint64_t channel = 0; channel < kChannels; ++channel) matchers_.back()->add_channel(channel, members);
    }
  }

  void step() {
    const int rank = pick(kRanks);
    if (dead_ == rank) return;
    switch (pick(8)) {
      case 0:
      case 1:
        post(rank, Direction::send);
        break;
      case 2:
      case 3:
        post(rank, Direction::receive);
        break;
      case 4:
        if (pick(3) == 0) cancel_one(rank);
        break;
      default:
        wires_[at(rank)]->next_read = static_cast<std::size_t>(pick(4));
        poll(rank);
        break;
    }
    check_limits();
  }

  void crash(int rank) {
    dead_ = rank;
    // What it had not yet read stays unread; of what it wrote all has left, as with memory that is shared.
    for (int peer = 0; peer < kRanks; ++peer) {
      if (peer != rank) failures_due_.push_back(peer);
    }
  }

  // Everybody goes on until nothing moves any more.
  void settle() {
    for (const auto& wire : wires_) wire->next_read.reset();
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < kRanks; ++rank) moved = (rank != dead_ && poll(rank)) || moved;
      check_limits();
    }
    for (const int survivor : std::exchange(failures_due_, {})) {
      for (std::uint64_t channel = 0; channel < kChannels; ++channel) {
        matchers_[at(survivor)]->fail_rank(channel, dead_, {std::make_exception_ptr(PeerError("gone", {dead_}))});
      }
      note_ends();
    }
  }

  // Receives what was not received, and withdraws the receives that nothing came for.
  void finish() {
    settle();
    settle();  // after the failures
    for (const auto& item : items_) {
      if (item->owner == dead_ || item->message->direction != Direction::receive) continue;
      matchers_[at(item->owner)]->cancel(*item->message, std::make_exception_ptr(AbortedError("the end")));
    }
    note_ends();
    settle();
    // What waited at its sender for others to be received comes in a later round.
    for (bool more = true; more;) {
      more = false;
      for (int rank = 0; rank < kRanks; ++rank) more = (rank != dead_ && receive_all(rank)) || more;
    }
    settle();
  }

  int pulls() const noexcept { return pulls_; }

  void check() {
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == dead_) continue;
      EXPECT_FALSE(matchers_[at(rank)]->busy()) << "rank " << rank;
      for (int peer = 0; peer < kRanks; ++peer) {
        EXPECT_EQ(matchers_[at(rank)]->kept(peer).bytes, 0U);
        EXPECT_EQ(matchers_[at(rank)]->kept(peer).offers, 0U);
      }
    }
    check_deliveries();
  }

 private:
  using Key = std::tuple<std::uint64_t, int, int, std::uint32_t>;  // channel, source, destination, tag

  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  int pick(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }

  void post(int rank, Direction direction) {
    const bool send = direction == Direction::send;
    const int other = !send && pick(3) == 0 ? kAnySource : pick(kRanks);
    constexpr std::size_t kSizes[] = {0, 1, 30, 100, 101, 300, 1500};
    post(rank, direction, pick(kChannels), other, pick(kTags), send ? kSizes[pick(7)] : pick(12) == 0 ? 50 : 1500);
  }

  Item& add_item(int rank, Direction direction, std::uint64_t channel, int other, std::uint32_t tag,
                 std::size_t bytes) {
    const Granted granted;
    auto item = std::make_unique<Item>();
    item->owner = rank;
    item->number = items_.size();
    item->buffer.resize(bytes);
    if (direction == Direction::send) {
      for (std::size_t i = 0; i < bytes; ++i) item->buffer[i] = content(item->number, i);
    }
    item->message = std::make_shared<Message>(direction, channel, other, tag, item->buffer.data(), bytes);
    items_.push_back(std::move(item));
    return *items_.back();
  }

  Item* post(int rank, Direction direction, std::uint64_t channel, int other, std::uint32_t tag, std::size_t bytes) {
    Item& posted = add_item(rank, direction, channel, other, tag, bytes);
    try {
      if (!matchers_[at(rank)]->end_at_once(*posted.message)) matchers_[at(rank)]->start(posted.message);
    } catch (const std::bad_alloc&) {
      // The call has thrown: the buffer is the caller's, and nobody may know of the message.
      EXPECT_EQ(posted.message->stage, Message::Stage::fresh);
      posted.message->done = true;
      posted.message->error = std::make_exception_ptr(std::bad_alloc());
    }
    note_ends();
    return &posted;
  }

  void cancel_one(int rank) {
    const Granted granted;
    std::vector<Item*> open;
    for (const auto& item : items_) {
      if (item->owner == rank && !item->message->done) open.push_back(item.get());
    }
    if (open.empty()) return;
    Message& message = *open[static_cast<std::size_t>(pick(static_cast<int>(open.size())))]->message;
    cancel(rank, message, std::make_exception_ptr(AbortedError("cancelled")));
    note_ends();
  }

  void cancel(int rank, Message& message, const std::exception_ptr& reason) {
    allocations_before_a_refusal = 0;  // cancelling takes no memory
    matchers_[at(rank)]->cancel(message, reason);
    allocations_before_a_refusal = -1;
  }

  bool poll(int rank) {
    const bool moved = matchers_[at(rank)]->poll();
    note_ends();
    return moved;
  }

  // What a caller may do once a request has ended: use the buffer for something else.
  void note_ends() {
    const Granted granted;
    for (const auto& item : items_) {
      if (item->closed || !item->message->done) continue;
      item->closed = true;
      if (item->message->direction == Direction::send) {
        std::fill(item->buffer.begin(), item->buffer.end(), std::byte{0xee});
      } else {
        item->left = item->buffer;
      }
    }
  }

  void check_limits() {
    for (int rank = 0; rank < kRanks; ++rank) {
      for (int peer = 0; peer < kRanks; ++peer) {
        ASSERT_LE(matchers_[at(rank)]->kept(peer).bytes, kLimits.eager_bytes);
        ASSERT_LE(matchers_[at(rank)]->kept(peer).offers, kLimits.offers);
      }
    }
  }

  // Whether anything was there to be received.
  bool receive_all(int rank) {
    bool some = false;
    for (std::uint64_t channel = 0; channel < kChannels; ++channel) {
      for (int source = 0; source < kRanks; ++source) {
        for (std::uint32_t tag = 0; tag < kTags; ++tag) {
          while (receive_one(rank, channel, source, tag)) some = true;
        }
      }
    }
    return some;
  }

  bool receive_one(int rank, std::uint64_t channel, int source, std::uint32_t tag) {
    const Item& receive = *post(rank, Direction::receive, channel, source, tag, 1500);
    settle();
    if (receive.message->done) return receive.message->error == nullptr;
    matchers_[at(rank)]->cancel(*receive.message, std::make_exception_ptr(AbortedError("nothing came")));
    note_ends();
    return false;
  }

  void check_deliveries() {
    std::map<Key, std::vector<const Item*>> sends;
    std::map<Key, std::size_t> used_up;  // messages whose receive ended otherwise
    std::map<Key, std::size_t> next;     // the first send that the next receive may have
    std::map<const Item*, int> delivered;
    for (const auto& item : items_) {
      const Message& m = *item->message;
      if (m.direction == Direction::send) sends[{m.channel, item->owner, m.rank, m.tag}].push_back(item.get());
    }
    for (const auto& item : items_) {
      const Message& m = *item->message;
      if (m.direction != Direction::receive) continue;
      if (item->closed) {
        ASSERT_EQ(item->buffer, item->left) << "written after its end: receive " << item->number;
      }
      if (m.status.source < 0 || item->owner == dead_) continue;
      const Key key{m.channel, m.status.source, item->owner, m.tag};
      if (m.error != nullptr) {
        ++used_up[key];
        continue;
      }
      std::size_t& from = next[key];
      const auto& row = sends[key];
      while (from < row.size() && !carries(*row[from], *item)) ++from;
      ASSERT_LT(from, row.size()) << "receive " << item->number << " has what nobody sent, or out of order";
      ++delivered[row[from++]];
    }
    for (const auto& [key, row] : sends) {
      std::size_t lost = 0;
      for (const Item* send : row) {
        if (send->owner == dead_ || send->message->rank == dead_) continue;
        ASSERT_TRUE(send->message->done) << "send " << send->number << " still waits";
        if (send->message->error == nullptr && delivered[send] == 0) ++lost;
      }
      EXPECT_LE(lost, used_up[key]) << "messages were lost";
    }
  }

  // By the number, which the content tells, and by every byte. Short messages may look alike: those are told apart by
  // their order. What was given up does not arrive.
  static bool carries(const Item& send, const Item& receive) {
    if (send.message->error != nullptr) return false;
    if (receive.message->status.bytes != send.message->bytes) return false;
    for (std::size_t i = 0; i < send.message->bytes; ++i) {
      if (receive.buffer[i] != content(send.number, i)) return false;
    }
    return true;
  }

  std::mt19937_64 random_;
  SimulatedNet net_;
  std::vector<std::unique_ptr<SimulatedWire>> wires_;
  std::vector<std::unique_ptr<Matcher>> matchers_;
  std::vector<std::unique_ptr<Item>> items_;
  int dead_ = -1;
  int pulls_ = 0;
  std::vector<int> failures_due_;
};

class MatcherProperty : public ::testing::Test {
 protected:
  void TearDown() override { allocations_before_a_refusal = -1; }
};

TEST_F(MatcherProperty, RandomProgramsDeliverEachMessageOnceAndInOrder) {
  int pulls = 0;
  for (std::uint64_t seed = 1; seed <= 600 && !HasFailure(); ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    Simulation simulation(seed);
    for (int step = 0; step < 300; ++step) simulation.step();
    simulation.finish();
    simulation.check();
    pulls += simulation.pulls();
  }
  EXPECT_GT(pulls, 1000) << "messages were read out of their senders' memory";
}

TEST_F(MatcherProperty, ACrashAtAnyStepLeavesNobodyWaiting) {
  constexpr int kSteps = 150;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    for (int crash_at = 0; crash_at < kSteps && !HasFailure(); ++crash_at) {
      SCOPED_TRACE(concat("seed ", seed, ", crash at step ", crash_at));
      Simulation simulation(seed);
      for (int step = 0; step < kSteps; ++step) {
        if (step == crash_at) simulation.crash(static_cast<int>(seed) % kRanks);
        simulation.step();
      }
      simulation.finish();
      simulation.check();
    }
  }
}

TEST_F(MatcherProperty, MemoryThatIsRefusedAtAnyAllocationLosesNothing) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    // No step makes as many.
    for (long refused = 0; refused < 12 && !HasFailure(); ++refused) {
      SCOPED_TRACE(concat("seed ", seed, ", in each step allocation ", refused, " is refused"));
      Simulation simulation(seed);
      for (int step = 0; step < 300; ++step) {
        allocations_before_a_refusal = refused;
        simulation.step();
        allocations_before_a_refusal = -1;
      }
      simulation.finish();
      simulation.check();
    }
  }
}

}  // namespace
}  // namespace gradwire::messages::matcher_property_test
