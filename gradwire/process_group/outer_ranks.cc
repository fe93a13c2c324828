// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <string>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/outer_ranks_internal.h"

namespace gradwire::internal {
namespace {

// The text counts the members from 0; empty where that is what they are called outside, too.
std::string among(std::span<const int> members) {
  const std::vector<int> outer(members.begin(), members.end());
  std::vector<int> inner(outer.size());
  std::iota(inner.begin(), inner.end(), 0);
  if (inner == outer) return "";
  return concat("among the ranks ", join(outer), " (called ", join(inner), " here): ");
}

template <class Kind>
std::exception_ptr translated(const Kind& error, const std::vector<int>& ranks, std::span<const int> members) {
  return std::make_exception_ptr(
      Kind(concat(name_ranks(ranks), " of the whole group: ", among(members), error.what()), ranks));
}

// A MismatchError names ranks in its text alone.
std::exception_ptr disagreement_among(const std::exception_ptr& error, std::span<const int> members) {
  try {
    std::rethrow_exception(error);
  } catch (const MismatchError& problem) {
    return std::make_exception_ptr(MismatchError(concat(among(members), problem.what())));
  } catch (...) {
    return error;
  }
}

}  // namespace

std::vector<int> peers_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerError& problem) {
    return problem.peers();
  } catch (const TimeoutError& problem) {
    return problem.peers();
  } catch (...) {
    return {};
  }
}

std::exception_ptr in_outer_ranks(const std::exception_ptr& error, std::span<const int> members) {
  std::vector<int> ranks = peers_of(error);
  if (ranks.empty()) return disagreement_among(error, members);
  for (int& rank : ranks) {
    if (rank >= 0 && static_cast<std::size_t>(rank) < members.size()) rank = members[static_cast<std::size_t>(rank)];
  }
  std::sort(ranks.begin(), ranks.end());
  try {
    std::rethrow_exception(error);
  } catch (const PeerError& problem) {
    return translated(problem, ranks, members);
  } catch (const TimeoutError& problem) {
    return translated(problem, ranks, members);
  }
}

std::exception_ptr in_inner_ranks(const std::exception_ptr& error, std::span<const int> members) {
  const std::vector<int> named = peers_of(error);
  if (named.empty()) return error;
  std::vector<int> ranks;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (std::find(named.begin(), named.end(), members[i]) != named.end()) ranks.push_back(static_cast<int>(i));
  }
  if (ranks.empty()) return nullptr;
  try {
    std::rethrow_exception(error);
  } catch (const PeerError& problem) {
    return std::make_exception_ptr(PeerError(problem.what(), ranks));
  } catch (const TimeoutError& problem) {
    return std::make_exception_ptr(TimeoutError(problem.what(), ranks));
  }
}

}  // namespace gradwire::internal
