// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// "Did you mean": the known name that is nearest to a wrong one.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace gradwire {

// The number of letters to insert, leave out, replace or swap with their neighbour that makes one name of the other.
// Capital letters count as small ones, and '-' as '_'.
std::size_t edit_distance(std::string_view a, std::string_view b);

// "; did you mean 'int8'?" for the name of `known` that is nearest to `name`; the first of several. Empty where no name
// is near: more than a third of the letters differ.
std::string did_you_mean(std::string_view name, std::span<const std::string> known);

}  // namespace gradwire
