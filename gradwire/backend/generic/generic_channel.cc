// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/generic/generic_channel.h"

#include <array>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "gradwire/backend/fingerprint_internal.h"
#include "gradwire/backend/generic/exchange_internal.h"
#include "gradwire/backend/generic/rank_array_internal.h"
#include "gradwire/backend/generic/tree_entry_internal.h"
#include "gradwire/backend/peer_error_internal.h"
#include "gradwire/backend/validate_internal.h"
#include "gradwire/base/call_name.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/trace.h"

namespace gradwire {
namespace {

// Collectives of one channel are in order and so are messages of one pair and tag: one tag serves them all.
constexpr std::uint32_t kCollectiveTag = kFirstReservedTag;

constexpr std::string_view kAborted = " aborted its channel: ";

// What the first rank to fail said, of a text to which the ranks in between have put theirs. The reason of an abort is
// the user's, and may quote errors itself.
std::string_view origin_of(std::string_view text) {
  const std::size_t last = text.substr(0, text.find(kAborted)).rfind("PeerError: ");
  return last == std::string_view::npos ? text : text.substr(last);
}

std::string context_of(const Fingerprint& call, const Channel& channel) {
  return concat(call_name(concat(describe(call), " (call ", call.sequence, ")")), " on rank ", channel.rank(), " of ",
                channel.size(), ": ");
}

// The exception under way with the call's name before its text. Kinds that carry no rank of a peer keep their kind too.
// What ends the channel is no ResourceError, after which callers go on. `ended`: the channel is at its end already, for
// a reason that has a context.
std::exception_ptr with_context(const std::string& context, bool ended) {
  try {
    throw;
  } catch (const TimeoutError& error) {
    return std::make_exception_ptr(TimeoutError(concat(context, error.what()), error.peers()));
  } catch (const PeerError& error) {
    return std::make_exception_ptr(peer_error(concat(context, origin_of(error.what())), error.peers()));
  } catch (const MismatchError& error) {
    // That of the entry says itself which call it is about.
    const std::string_view text = error.what();
    const bool is_of_entry = text.starts_with("ranks disagree");
    return is_of_entry ? std::current_exception() : std::make_exception_ptr(MismatchError(concat(context, text)));
  } catch (const std::bad_alloc&) {
    return std::make_exception_ptr(AbortedError(concat(context, "no memory for messages that are under way")));
  } catch (const ResourceError& error) {
    return std::make_exception_ptr(AbortedError(concat(context, error.what())));
  } catch (const AbortedError&) {
    // Of a channel that goes on, a wait ends so when it is interrupted.
    return ended ? std::current_exception()
                 : std::make_exception_ptr(AbortedError(concat(context, "interrupted on this rank")));
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

// A rank that calls something else sends more bytes or fewer: every slot has room for the most.
GenericChannel::GenericChannel(int size) {
  const std::size_t most = size == 2 ? 2 * kAtOnceOfTwoBytes : kAtOnceBytes;
  if (size <= kDirectRanks) entry_memory_.resize(static_cast<std::size_t>(size) * sizeof(Fingerprint) + most);
}

std::shared_ptr<Request> GenericChannel::isend(const void* data, std::size_t bytes, int destination,
                                               std::uint32_t tag) {
  validate::isend(*this, data, bytes, destination, tag);
  check();
  return start_send(data, bytes, destination, tag);
}

std::shared_ptr<Request> GenericChannel::irecv(void* data, std::size_t bytes, int source, std::uint32_t tag) {
  validate::irecv(*this, data, bytes, source, tag);
  check();
  return start_receive(data, bytes, source, tag);
}

void GenericChannel::abort(std::string_view reason) noexcept {
  try {
    const std::string text = concat("rank ", rank(), kAborted, reason);
    end_with(std::make_exception_ptr(AbortedError(text)), text);
  } catch (...) {
    end_with(std::make_exception_ptr(std::bad_alloc()), {});
  }
}

void GenericChannel::check() const {
  const MutexLock lock(mutex_);
  if (first_reason_ != nullptr) std::rethrow_exception(first_reason_);
}

bool GenericChannel::is_at_end() const {
  const MutexLock lock(mutex_);
  return first_reason_ != nullptr;
}

void GenericChannel::end_with(std::exception_ptr error, const std::string& text) noexcept {
  {
    const MutexLock lock(mutex_);
    if (first_reason_ != nullptr) return;
    first_reason_ = error;
  }
  // A rank that fails because of others passes their names on, so that all ranks name the same.
  try {
    std::rethrow_exception(error);
  } catch (const PeerError& failure) {
    announce_end(text, failure.peers());
  } catch (const TimeoutError& failure) {
    announce_end(text, failure.peers());
  } catch (...) {
    announce_end(text, {});
  }
}

void GenericChannel::fail_call() noexcept {
  try {
    const auto error = with_context(context_of(*call_, *this), is_at_end());
    end_with(error, describe(error));
  } catch (const std::bad_alloc&) {
    end_with(std::current_exception(), "no memory for the text of an error");
  }
}

void GenericChannel::run(Fingerprint call, const CallOptions& options, const std::function<void()>& body) {
  run_staged(call, options, 0, [&](std::span<std::byte>) { body(); });
}

void GenericChannel::run_staged(Fingerprint call, const CallOptions& options, std::size_t bytes,
                                const StagedBody& body) {
  run_any(call, options, bytes, {}, body);
}

void GenericChannel::run_at_once(Fingerprint call, const CallOptions& options, const void* mine, std::size_t bytes,
                                 const AtOnceBody& body) {
  generic::RankArray<const void*> inputs(static_cast<std::size_t>(size()));
  const std::span<const void*> used = inputs.span();
  run_any(call, options, 0, {mine, bytes, used}, [&](std::span<std::byte>) { body(used); });
}

void GenericChannel::run_any(Fingerprint call, const CallOptions& options, std::size_t bytes, Entry entry,
                             const StagedBody& body) {
  check();
  call = complete(call, ++sequence_, options);
  trace::point("collective.entry", rank(), call.sequence);
  call_ = &call;
  std::unique_ptr<std::byte[]> staging;
  try {
    staging = std::make_unique_for_overwrite<std::byte[]>(bytes);
  } catch (const std::bad_alloc&) {
    call.refused = 1;
  }
  std::vector<int> refused;
  try {
    refused =
        is_wide() ? compare_in_tree(call, entry, options.deadline) : compare_directly(call, entry, options.deadline);
    if (refused.empty()) body({staging.get(), bytes});
  } catch (...) {
    fail_call();
  }
  check();
  if (!refused.empty()) {
    throw ResourceError(concat(context_of(call, *this), name_ranks(refused), " had no ", bytes,
                               " bytes to stage messages in; nothing was sent, and the channel goes on"));
  }
  trace::point("collective.exit", rank(), call.sequence);
}

std::vector<int> GenericChannel::compare_directly(const Fingerprint& call, const Entry& entry, Deadline deadline) {
  const std::size_t stride = sizeof(Fingerprint) + exchange_at_once_bytes();
  const auto slot = [&](int r) { return entry_memory_.data() + static_cast<std::size_t>(r) * stride; };
  generic::Exchange exchange(*this);
  for (int step = 1; step < size(); ++step) {
    const int from = (rank() - step + size()) % size();
    exchange.add_receive_of_any_length(from, start_receive(slot(from), stride, from, kCollectiveTag));
  }
  std::memcpy(slot(rank()), &call, sizeof(call));
  if (entry.bytes > 0) std::memcpy(slot(rank()) + sizeof(call), entry.mine, entry.bytes);
  for (int step = 1; step < size(); ++step) {
    post_send(exchange, slot(rank()), sizeof(call) + entry.bytes, (rank() + step) % size());
  }
  exchange.finish(deadline);
  std::array<Fingerprint, kDirectRanks> fingerprints;
  for (int r = 0; r < size(); ++r)
    std::memcpy(&fingerprints[static_cast<std::size_t>(r)], slot(r), sizeof(Fingerprint));
  std::vector<int> refused = judge({fingerprints.data(), static_cast<std::size_t>(size())});
  take_inputs(entry, entry_memory_.data() + sizeof(Fingerprint), stride);
  return refused;
}

// The inputs lie in the entry's memory, which stays as it is until the next call.
std::vector<int> GenericChannel::compare_in_tree(const Fingerprint& call, const Entry& entry, Deadline deadline) {
  const generic::TreeEntry::Links links{
      [this](const void* data, std::size_t bytes, int peer) { return start_send(data, bytes, peer, kCollectiveTag); },
      [this](void* data, std::size_t bytes, int peer) { return start_receive(data, bytes, peer, kCollectiveTag); }};
  generic::TreeEntry tree(rank(), size(), at_once_bytes(), links, deadline);
  if (entry_memory_.empty()) entry_memory_.resize(tree.memory_bytes());
  tree.run(call, entry.mine, entry.bytes, entry_memory_);
  generic::RankArray<Fingerprint> fingerprints(static_cast<std::size_t>(size()));
  for (const generic::Run& run : tree.calls()) {
    for (int r = run.first; r < run.first + run.count; ++r) fingerprints[static_cast<std::size_t>(r)] = run.call;
  }
  std::vector<int> refused = judge(fingerprints.span());
  if (tree.inputs() != nullptr) take_inputs(entry, tree.inputs(), entry.bytes);
  return refused;
}

std::vector<int> GenericChannel::judge(std::span<Fingerprint> fingerprints) const {
  std::vector<int> refused;
  for (std::size_t r = 0; r < fingerprints.size(); ++r) {
    if (std::exchange(fingerprints[r].refused, std::uint8_t{0}) != 0) refused.push_back(static_cast<int>(r));
  }
  require_same(fingerprints, rank());
  return refused;
}

void GenericChannel::take_inputs(const Entry& entry, const std::byte* first, std::size_t stride) const noexcept {
  for (std::size_t r = 0; r < entry.inputs.size(); ++r) {
    entry.inputs[r] = static_cast<int>(r) == rank() ? entry.mine : first + r * stride;
  }
}

void GenericChannel::post_send(generic::Exchange& exchange, const void* data, std::size_t bytes, int peer) {
  if (bytes > 0) exchange.add_send(peer, start_send(data, bytes, peer, kCollectiveTag));
}

void GenericChannel::post_receive(generic::Exchange& exchange, void* data, std::size_t bytes, int peer) {
  if (bytes > 0) exchange.add_receive(peer, bytes, start_receive(data, bytes, peer, kCollectiveTag));
}

void GenericChannel::note_reduction() const noexcept { trace::point("collective.reduce", rank(), sequence_); }

}  // namespace gradwire
