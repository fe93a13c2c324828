// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Names of functions, for people.
#pragma once

#include <string>
#include <string_view>

namespace gradwire::observe {

// "gradwire::ProcessGroup::all_reduce": the symbol of a linker without parameters, result, template arguments and
// unnamed namespaces. A symbol that is no mangled name stays as it is.
std::string readable_symbol(const std::string& symbol);

// Keeps the end of a name that is longer than `most` characters: "...DistributedDataParallel::forward".
std::string keep_end(const std::string& name, std::size_t most);

}  // namespace gradwire::observe
