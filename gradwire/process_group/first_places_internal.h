// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Where the ranks of a group meet first, whichever backend it has.
#pragma once

#include <string>
#include <vector>

namespace gradwire::internal {

// As prefixes below `store`, itself a prefix of the caller's store; "" for none.
inline std::vector<std::string> first_places(const std::string& store = "") {
  std::vector<std::string> places;
  for (const char* const place : {"", "backend", "rendezvous", "cpu", "cpu/backend"}) {
    const bool is_below = !store.empty() && *place != '\0';
    places.push_back(store + (is_below ? "/" : "") + place);
  }
  return places;
}

}  // namespace gradwire::internal
