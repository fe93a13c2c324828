// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which call a rank would make next, going by the calls that the rank made before.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace gradwire::observe {

// The calls of a rank in the order in which the rank made them, in the places [first, here). The call in place `here`
// is the one that is asked about.
struct CallHistory {
  std::uint64_t first = 0;
  std::uint64_t here = 0;
  bool is_whole = true;  // the call in the place `first` was the first of all; otherwise earlier calls are forgotten
};

// The place of the call that followed when the calls leading up to it were most like those leading up to `here`; of
// several such places, the last. `same(a, b)` compares the calls in two places. Nothing where no place is like `here`,
// and where forgotten calls might speak for another call.
template <class Same>
std::optional<std::uint64_t> place_like(const CallHistory& history, const Same& same) {
  struct Place {
    std::uint64_t number = 0;
    std::uint64_t length = 0;  // how many calls before it are those before `here`
    bool may_be_longer = false;
  };
  std::vector<Place> places;
  for (std::uint64_t number = history.first; number < history.here; ++number) {
    Place place{number};
    while (number - place.length > history.first && same(number - 1 - place.length, history.here - 1 - place.length))
      ++place.length;
    place.may_be_longer = !history.is_whole && number - place.length == history.first;
    if (place.length > 0) places.push_back(place);
  }
  Place best;
  for (const Place& place : places) {
    if (place.length >= best.length) best = place;
  }
  if (places.empty()) return std::nullopt;
  Place rival;  // the one of those with another call that is most like it
  for (const Place& place : places) {
    if (place.length >= rival.length && !same(place.number, best.number)) rival = place;
  }
  if (rival.may_be_longer || rival.length == best.length) return std::nullopt;
  return best.number;
}

}  // namespace gradwire::observe
