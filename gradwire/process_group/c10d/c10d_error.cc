// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <stdexcept>
#include <string_view>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/c10d/c10d_error_internal.h"

namespace gradwire::internal {
namespace {

template <std::size_t kCount>
bool has_any(const std::string& text, const std::array<std::string_view, kCount>& words) {
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view word) { return text.find(word) != std::string::npos; });
}

constexpr std::array<std::string_view, 3> kTime{"timed out", "timeout after", "wait timeout"};
constexpr std::array<std::string_view, 7> kConnection{"connection", "broken pipe",    "pair closure", "socket",
                                                      "remote",     "closed by peer", "network"};
constexpr std::array<std::string_view, 4> kUnsupported{"not support", "unsupported", "not implemented",
                                                       "is missing implementation"};

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

std::exception_ptr sort_out(const std::string& what, const std::string& said, bool at_call) {
  const std::string text = lower_case(said);
  const std::string message = concat(what, ": ", said);
  if (has_any(text, kTime)) return std::make_exception_ptr(TimeoutError(message));
  if (has_any(text, kConnection)) return std::make_exception_ptr(PeerError(message, {}));
  if (has_any(text, kUnsupported)) return std::make_exception_ptr(UnsupportedError(message));
  if (at_call) return std::make_exception_ptr(InvalidArgument(message));
  return std::make_exception_ptr(PeerError(message, {}));
}

}  // namespace

std::exception_ptr error_from_c10d(const std::string& what, const std::exception_ptr& error, bool at_call) {
  try {
    std::rethrow_exception(error);
  } catch (const Error&) {
    return error;
  } catch (const c10::NotImplementedError& problem) {
    return std::make_exception_ptr(UnsupportedError(concat(what, ": ", problem.what_without_backtrace())));
  } catch (const c10::Error& problem) {
    return sort_out(what, problem.what_without_backtrace(), at_call);
  } catch (const std::runtime_error& problem) {
    return sort_out(what, problem.what(), at_call);
  } catch (const std::logic_error& problem) {
    return sort_out(what, problem.what(), at_call);
  } catch (...) {
    return error;
  }
}

bool ends_the_group(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const TimeoutError&) {
    return true;
  } catch (const PeerError&) {
    return true;
  } catch (const AbortedError&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace gradwire::internal
