// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Parses text of the commands' options: sizes, and lists of names with options.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace gradwire::bench {

// "4Ki", "25Mi", "100" to bytes. Throws InvalidArgument.
std::size_t parse_bytes(const std::string& text);
std::vector<std::size_t> parse_bytes(const std::vector<std::string>& texts);
std::string format_bytes(std::size_t bytes);

// Splits "fp16,power_sgd:rank=4,start=10,int8" into its three names with their options: a part "key=value" belongs to
// the name before it. Spaces are dropped.
std::vector<std::string> parse_names(const std::string& text);

}  // namespace gradwire::bench
