// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The distance of Damerau and Levenshtein, restricted: no letter is changed twice.
#include "gradwire/base/nearest.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <vector>

#include "gradwire/base/strings.h"

namespace gradwire {
namespace {

char plain(char letter) noexcept {
  return letter == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Rows of the table of distances between the beginnings of `a` and those of `b`.
  std::vector<std::size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before_last.swap(last);
    last.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = plain(a[i - 1]) == plain(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      const bool is_swap = i > 1 && j > 1 && plain(a[i - 1]) == plain(b[j - 2]) && plain(a[i - 2]) == plain(b[j - 1]);
      if (is_swap) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
  }
  return row.back();
}

std::string did_you_mean(std::string_view name, std::span<const std::string> known) {
  const std::string* nearest = nullptr;
  std::size_t least = 0;
  for (const std::string& each : known) {
    const std::size_t distance = edit_distance(name, each);
    if (nearest != nullptr && distance >= least) continue;
    nearest = &each;
    least = distance;
  }
  const bool is_near = nearest != nullptr && 3 * least <= std::max(name.size(), nearest->size());
  return is_near ? concat("; did you mean '", *nearest, "'?") : "";
}

}  // namespace gradwire
