// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The messages and offers of a channel that came before their receives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gradwire/backend/backend.h"

namespace gradwire::messages {

struct Unexpected;

// A row's place in a chain.
struct UnexpectedLink {
  Unexpected* previous = nullptr;
  Unexpected* next = nullptr;
};

// A message or an offer that nobody has received.
struct Unexpected {
  int peer = 0;
  std::uint32_t tag = 0;
  std::uint64_t offer = 0;  // the sender's number; 0: a small message
  std::uint64_t lent = 0;   // an offer's: as Message's
  std::size_t bytes = 0;
  std::unique_ptr<std::byte[]> payload;
  UnexpectedLink by_tag;  // UnexpectedList's
  UnexpectedLink by_peer_and_tag;
};

// Rows, linked through themselves in the order in which they came. Does not own its rows.
template <UnexpectedLink Unexpected::*kLink>
class UnexpectedChain final {
 public:
  Unexpected* front() const noexcept { return first_; }
  static Unexpected* after(const Unexpected& row) noexcept { return (row.*kLink).next; }
  void push_back(Unexpected& row) noexcept {
    row.*kLink = {last_, nullptr};
    (last_ == nullptr ? first_ : (last_->*kLink).next) = &row;
    last_ = &row;
  }
  void remove(Unexpected& row) noexcept {
    const auto [previous, next] = row.*kLink;
    (previous == nullptr ? first_ : (previous->*kLink).next) = next;
    (next == nullptr ? last_ : (next->*kLink).previous) = previous;
  }

 private:
  Unexpected* first_ = nullptr;
  Unexpected* last_ = nullptr;
};

// Each row is in two chains, one with others of its tag and one with others of its peer and tag: so it is found among
// few, however many are kept, also by a receive from any rank. Up to kFewRows lie in one chain. Beyond that there are
// at most kChainsOfThreeRows chains for three rows, also when rows have gone: with a row, its payload aside, and its
// share of the chains a message takes no more than kEagerOverhead. Without memory there may be fewer or more chains.
// Owns the rows. Used by one thread at a time.
class UnexpectedList final {
 public:
  // Throws std::bad_alloc.
  UnexpectedList() : buckets_(1) {}
  ~UnexpectedList();
  UnexpectedList(const UnexpectedList&) = delete;
  UnexpectedList& operator=(const UnexpectedList&) = delete;

  bool empty() const noexcept { return size_ == 0; }
  // The first that came of the peer, or with kAnySource of any, with the tag; null when there is none.
  Unexpected* find(int peer, std::uint32_t tag) const noexcept;
  // The peer's offer of this number, which has the tag; null when there is none.
  Unexpected* find_offer(int peer, std::uint32_t tag, std::uint64_t offer) const noexcept;
  // The row is behind all others.
  void add(std::unique_ptr<Unexpected> row) noexcept;
  // The row is not in the list any more.
  std::unique_ptr<Unexpected> take(Unexpected& row) noexcept;
  // Calls `visit(row)` for each, in any order; it may take the row that it was given, and must not throw then.
  template <class Visit>
  void for_each(Visit&& visit) {
    visits_ = true;
    visit_all(visit);
    visits_ = false;
    gather();
  }
  template <class Visit>
  void for_each(Visit&& visit) const {
    visit_all([&](const Unexpected& row) { visit(row); });
  }
  // How many chains there are of each kind.
  std::size_t chains() const noexcept { return buckets_.size(); }
  static constexpr std::size_t kFewRows = 16;
  static constexpr std::size_t kChainsOfThreeRows = 4;

 private:
  template <class Visit>
  void visit_all(Visit&& visit) const {
    for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
      for (Unexpected* row = buckets_[bucket].of_tag.front(); row != nullptr;) {
        Unexpected& each = *row;
        row = TagChain::after(each);
        visit(each);
      }
    }
  }

  static constexpr std::size_t kRowsPerBucket = 4;
  using TagChain = UnexpectedChain<&Unexpected::by_tag>;
  using PeerAndTagChain = UnexpectedChain<&Unexpected::by_peer_and_tag>;
  struct Bucket {
    TagChain of_tag;
    PeerAndTagChain of_peer_and_tag;
  };
  using Buckets = std::vector<Bucket>;  // as many as a power of two

  static Bucket& at(Buckets& buckets, int peer, std::uint32_t tag) noexcept;
  static void link(Buckets& buckets, Unexpected& row) noexcept;
  void spread() noexcept;
  void gather() noexcept;

  Buckets buckets_;
  std::size_t size_ = 0;
  bool visits_ = false;  // rows are being visited, so they stay in their chains
};

}  // namespace gradwire::messages
