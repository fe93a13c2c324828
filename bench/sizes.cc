// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "bench/sizes.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::bench {

std::size_t parse_bytes(const std::string& text) {
  std::size_t end = 0;
  unsigned long long number = 0;
  try {
    number = std::stoull(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  const std::string unit = text.substr(end);
  const int shift = unit.empty() ? 0 : unit == "Ki" ? 10 : unit == "Mi" ? 20 : unit == "Gi" ? 30 : -1;
  if (end == 0 || shift < 0 || text[0] == '-')
    throw InvalidArgument(concat("'", text, "' is no size; write 4096, 4Ki, 25Mi or 1Gi"));
  return static_cast<std::size_t>(number) << static_cast<unsigned>(shift);
}

std::vector<std::size_t> parse_bytes(const std::vector<std::string>& texts) {
  std::vector<std::size_t> bytes;
  for (const std::string& text : texts) bytes.push_back(parse_bytes(text));
  return bytes;
}

std::string format_bytes(std::size_t bytes) {
  for (const auto& [shift, unit] : {std::pair{30U, "Gi"}, std::pair{20U, "Mi"}, std::pair{10U, "Ki"}}) {
    if (bytes != 0 && bytes % (std::size_t{1} << shift) == 0) return std::to_string(bytes >> shift) + unit;
  }
  return std::to_string(bytes);
}

std::vector<std::string> parse_names(const std::string& text) {
  std::string packed = text;
  packed.erase(std::remove(packed.begin(), packed.end(), ' '), packed.end());
  std::istringstream parts(packed);
  std::vector<std::string> names;
  for (std::string part; std::getline(parts, part, ',');) {
    const std::size_t equals = part.find('=');
    const bool is_option = equals != std::string::npos && part.find(':') > equals;
    if (is_option && !names.empty()) {
      names.back() += "," + part;
    } else if (!part.empty()) {
      names.push_back(part);
    }
  }
  return names;
}

}  // namespace gradwire::bench
