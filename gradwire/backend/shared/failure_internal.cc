// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/shared/failure_internal.h"

#include <cstring>
#include <vector>

#include "gradwire/backend/backend.h"
#include "gradwire/backend/peer_error_internal.h"
#include "gradwire/backend/shared/max_ranks.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::shared {
namespace {

std::uint64_t to_mask(const std::vector<int>& ranks) noexcept {
  std::uint64_t mask = 0;
  for (const int rank : ranks) mask |= bit_of_rank(rank);
  return mask;
}

std::vector<int> to_ranks(std::uint64_t mask) {
  std::vector<int> ranks;
  for (int rank = 0; rank < kMaxRanksOfHost; ++rank) {
    if ((mask & bit_of_rank(rank)) != 0) ranks.push_back(rank);
  }
  return ranks;
}

FailureReport make_report(FailureKind kind, std::uint64_t culprits, std::string_view reason) noexcept {
  FailureReport report{};
  report.kind = kind;
  report.culprits = culprits;
  set_reason(report, reason);
  return report;
}

// What `peer` reported, without the name of its call where this rank made the same call: ranks that hear of a death say
// the same of it, whoever tells them.
std::string_view without_call(std::string_view reason, int peer, std::string_view call) {
  const std::string same = concat(call.substr(0, call.rfind(" on rank ")), " on rank ", peer, " of ");
  const std::size_t colon = reason.starts_with(same) ? reason.find(": ", same.size()) : std::string_view::npos;
  return colon == std::string_view::npos ? std::string_view() : reason.substr(colon + 2);
}

}  // namespace

void set_reason(FailureReport& report, std::string_view reason) noexcept {
  std::memset(report.reason, 0, sizeof(report.reason));
  reason.copy(report.reason, sizeof(report.reason) - 1);
}

std::string reason_of(const FailureReport& report) {
  return {report.reason, ::strnlen(report.reason, sizeof(report.reason))};
}

std::vector<int> at_fault(int peer, const FailureReport& report, int own_rank) {
  std::vector<int> ranks = report.kind == FailureKind::peer ? to_ranks(report.culprits) : std::vector<int>{};
  std::erase(ranks, own_rank);
  return ranks.empty() ? std::vector<int>{peer} : ranks;
}

FailureReport report_of(const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const PeerError& e) {
    return make_report(FailureKind::peer, to_mask(e.peers()), e.what());
  } catch (const TimeoutError& e) {
    return make_report(FailureKind::timeout, to_mask(e.peers()), e.what());
  } catch (const MismatchError& e) {
    return make_report(FailureKind::mismatch, 0, e.what());
  } catch (const AbortedError& e) {
    return make_report(FailureKind::aborted, 0, e.what());
  } catch (const std::exception& e) {
    return make_report(FailureKind::other, 0, e.what());
  } catch (...) {
    return make_report(FailureKind::other, 0, "an exception that is no std::exception");
  }
}

void throw_failure_of(int peer, const FailureReport& report, std::string_view call) {
  const std::string reason = reason_of(report);
  const std::string message = concat(call, ": rank ", peer, " failed: ", reason);
  switch (report.kind) {
    case FailureKind::mismatch:
      throw MismatchError(message);
    case FailureKind::timeout:
      throw TimeoutError(message, to_ranks(report.culprits));
    case FailureKind::peer: {
      const std::string_view heard = without_call(reason, peer, call);
      throw peer_error(heard.empty() ? message : concat(call, ": ", heard), to_ranks(report.culprits));
    }
    case FailureKind::aborted:
    case FailureKind::other:
      break;
  }
  throw peer_error(message, {peer});
}

}  // namespace gradwire::shared
