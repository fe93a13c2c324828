// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/observe/epoch_path.h"

#include <charconv>
#include <system_error>

#include "gradwire/base/strings.h"

namespace gradwire::observe {
namespace {

constexpr std::string_view kPrefix = "epoch ";
constexpr std::string_view kFollower = "member ";
constexpr std::string_view kFollows = " follows";

}  // namespace

std::string path_of_epoch(std::int64_t epoch) { return concat(kPrefix, epoch); }

std::int64_t epoch_of_path(std::string_view path) noexcept {
  if (!path.starts_with(kPrefix)) return 0;
  const char* const end = path.data() + path.size();
  std::int64_t epoch = 0;
  const auto [rest, error] = std::from_chars(path.data() + kPrefix.size(), end, epoch);
  const bool is_whole = rest == end || *rest == '.' || *rest == '#';
  return error == std::errc() && is_whole && epoch > 0 ? epoch : 0;
}

std::string path_of_following(std::int64_t follower) { return concat(kFollower, follower, kFollows); }

bool is_path_of_following(std::string_view path) noexcept {
  return path.starts_with(kFollower) && path.find(kFollows) != std::string_view::npos;
}

}  // namespace gradwire::observe
