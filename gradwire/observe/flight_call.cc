// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/observe/flight_call.h"

#include <array>
#include <cstddef>
#include <new>
#include <vector>

#include "gradwire/base/error.h"

namespace gradwire::observe {
namespace {

constexpr std::array<std::string_view, kCallKinds> kKindNames = {"none",
                                                                 "barrier",
                                                                 "broadcast",
                                                                 "all_reduce",
                                                                 "reduce",
                                                                 "all_gather",
                                                                 "all_gather_into_tensor",
                                                                 "gather",
                                                                 "scatter",
                                                                 "reduce_scatter",
                                                                 "reduce_scatter_tensor",
                                                                 "all_to_all",
                                                                 "all_to_all_single",
                                                                 "monitored_barrier",
                                                                 "dup",
                                                                 "split",
                                                                 "allocate",
                                                                 "send",
                                                                 "recv",
                                                                 "recv_anysource"};

constexpr std::array<std::string_view, kOutcomes> kOutcomeNames = {
    "under way", "good", "mismatch", "peer", "timeout", "aborted", "resource", "refused", "other", "unknown"};

template <class Enum, std::size_t Size>
Enum find(const std::array<std::string_view, Size>& names, std::string_view name) noexcept {
  for (std::size_t i = 0; i < Size; ++i) {
    if (names[i] == name) return static_cast<Enum>(i);
  }
  return Enum{};
}

std::uint64_t bits_of(const std::vector<int>& ranks) noexcept {
  std::uint64_t bits = 0;
  for (const int rank : ranks) {
    if (rank >= 0 && rank < 64) bits |= std::uint64_t{1} << rank;
  }
  return bits;
}

}  // namespace

std::string_view name_of(CallKind kind) noexcept {
  const auto index = static_cast<std::size_t>(kind);
  return index < kKindNames.size() ? kKindNames[index] : kKindNames[0];
}

CallKind call_kind_from_name(std::string_view name) noexcept { return find<CallKind>(kKindNames, name); }

std::string words_of_tag(std::uint64_t tag) {
  std::string text = "iteration ";
  text.append(std::to_string(tag >> 32)).append(" bucket ").append(std::to_string(tag >> 16 & 0xffff));
  return text.append(" stage ").append(std::to_string(tag >> 8 & 0xff));
}

std::string_view name_of(Outcome outcome) noexcept {
  const auto index = static_cast<std::size_t>(outcome);
  return index < kOutcomeNames.size() ? kOutcomeNames[index] : kOutcomeNames[0];
}

Outcome outcome_from_name(std::string_view name) noexcept { return find<Outcome>(kOutcomeNames, name); }

ErrorSummary summary_of(const std::exception_ptr& error) noexcept {
  if (error == nullptr) return {};
  try {
    std::rethrow_exception(error);
  } catch (const MismatchError&) {
    return {Outcome::mismatch, 0};
  } catch (const PeerError& problem) {
    return {Outcome::peer, bits_of(problem.peers())};
  } catch (const TimeoutError& problem) {
    return {Outcome::timeout, bits_of(problem.peers())};
  } catch (const AbortedError&) {
    return {Outcome::aborted, 0};
  } catch (const ResourceError&) {
    return {Outcome::resource, 0};
  } catch (const std::bad_alloc&) {
    return {Outcome::resource, 0};
  } catch (const InvalidArgument&) {
    return {Outcome::refused, 0};
  } catch (const UnsupportedError&) {
    return {Outcome::refused, 0};
  } catch (...) {
    return {Outcome::other, 0};
  }
}

}  // namespace gradwire::observe
