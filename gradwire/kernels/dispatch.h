// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which instruction set the kernels use.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gradwire::kernels {

// The name of the set in use: "scalar", or Highway's target name in lower case: "avx3" (AVX-512), "avx2" or "sse4" on
// x86-64, "neon" on Arm. Chosen at the first call: the best this processor has, or what the environment variable
// GRADWIRE_KERNELS names. A name that is unknown or that this processor lacks throws InvalidArgument with the right
// names. Thread-safe.
std::string_view selected();

// The names that this processor can run, best first; "scalar", the reference, is always the last.
std::vector<std::string> available();

// Selects by name for the whole process, over GRADWIRE_KERNELS; an empty name goes back to the default, which is looked
// up again at the next call. For tests and benchmarks. Thread-safe; a reduction that is under way ends with the set it
// began with. Throws InvalidArgument like selected().
void select(std::string_view name);

}  // namespace gradwire::kernels
