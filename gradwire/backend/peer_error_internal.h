// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// PeerErrors of collectives, which tell the user what to do.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"

namespace gradwire {

inline constexpr const char* kAfterADeath =
    "; start the job again, or run the job elastically, so that the others go on (docs/elastic.md)";
inline constexpr const char* kAfterALeave =
    "; all ranks must make the same calls: look for an error of that rank, or for a loop that is shorter there (use "
    "Join)";

// A PeerError whose text ends with `advice`; once, however often ranks pass the text on.
inline PeerError peer_error(std::string text, std::vector<int> peers, const char* advice = kAfterADeath) {
  const bool has_advice = text.find(kAfterADeath) != std::string::npos || text.find(kAfterALeave) != std::string::npos;
  if (!has_advice) text += advice;
  return {text, std::move(peers)};
}

}  // namespace gradwire
