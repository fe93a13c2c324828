// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/hybrid/fault_text_internal.h"

#include <cstring>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/outer_ranks_internal.h"

namespace gradwire::internal {
namespace {

// A reason begins with these, and the ranks at fault between them.
constexpr const char* kAtFault = "[hybrid: at fault ";
constexpr const char* kEndOfFault = "] ";

}  // namespace

std::optional<std::vector<int>> culprits_in(const std::string& text) {
  const std::size_t begin = text.find(kAtFault);
  if (begin == std::string::npos) return std::nullopt;
  return leading_numbers(text.substr(begin + std::strlen(kAtFault)));
}

std::string readable(std::string text) {
  for (auto begin = text.find(kAtFault); begin != std::string::npos; begin = text.find(kAtFault)) {
    const auto end = text.find(kEndOfFault, begin);
    text.erase(begin, end == std::string::npos ? end : end + std::strlen(kEndOfFault) - begin);
  }
  return text;
}

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& problem) {
    return problem.what();
  } catch (...) {
    return describe(error);
  }
}

std::exception_ptr end_by_others(const std::exception_ptr& error, int own_rank) {
  const std::string text = message_of(error);
  const auto culprits = culprits_in(text);
  if (!culprits || *culprits == std::vector<int>{own_rank}) return nullptr;
  // The text counts the ranks of the group below.
  const std::string who = culprits->empty() ? "" : concat(name_ranks(*culprits), " of the whole group: ");
  return std::make_exception_ptr(PeerError(concat(who, readable(text)), *culprits));
}

bool is_about_peers(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerError&) {
    return true;
  } catch (const TimeoutError&) {
    return true;
  } catch (...) {
    return false;
  }
}

std::string reason_with_culprits(const std::exception_ptr& error, int own_rank, const std::string& reason) {
  const std::vector<int> culprits = is_about_peers(error) ? peers_of(error) : std::vector<int>{own_rank};
  return concat(kAtFault, join(culprits, ","), kEndOfFault, reason);
}

}  // namespace gradwire::internal
