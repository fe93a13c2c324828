// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How the flight recorder names the groups of an elastic job: "epoch 7" is the group of epoch 7, and "epoch 7.dup1" one
// that was made from it. In "member 4 follows", the members of an epoch give member 4 their state and their tape.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gradwire::observe {

// The path of the group of an epoch.
std::string path_of_epoch(std::int64_t epoch);
// The epoch of the group with this path, or of the group that it was made from; 0: it is none of an epoch.
std::int64_t epoch_of_path(std::string_view path) noexcept;

// The path of the group in which a newcomer, by its number, follows the members.
std::string path_of_following(std::int64_t follower);
// Whether the path is one of these. No step waits for the calls of such a group, which mostly ends with an error.
bool is_path_of_following(std::string_view path) noexcept;

}  // namespace gradwire::observe
