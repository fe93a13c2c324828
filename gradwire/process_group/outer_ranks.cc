// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/outer_ranks_internal.h"

namespace gradwire::internal {
namespace {

template <class Kind>
std::exception_ptr translated(const Kind& error, const std::vector<int>& ranks) {
  return std::make_exception_ptr(Kind(concat(name_ranks(ranks), " of the whole group: ", error.what()), ranks));
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
  if (ranks.empty()) return error;
  for (int& rank : ranks) {
    if (rank >= 0 && static_cast<std::size_t>(rank) < members.size()) rank = members[static_cast<std::size_t>(rank)];
  }
  std::sort(ranks.begin(), ranks.end());
  try {
    std::rethrow_exception(error);
  } catch (const PeerError& problem) {
    return translated(problem, ranks);
  } catch (const TimeoutError& problem) {
    return translated(problem, ranks);
  }
}

}  // namespace gradwire::internal
