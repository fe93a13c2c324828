// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which instruction set the kernels use.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gradwire::kernels {

// Returns the name of the instruction set in use: "scalar", or Highway's target name in lower case ("avx3", which is
// AVX-512, "avx2" or "sse4" on x86-64, "neon" on Arm). The first call chooses: the best set of this processor, or the
// set that the environment variable GRADWIRE_KERNELS names. Throws InvalidArgument, with the list of names, when
// GRADWIRE_KERNELS is unknown or this processor lacks the set. Thread-safe.
std::string_view selected();

// Returns the names that this processor can run, best first. The last one is always "scalar", the reference.
std::vector<std::string> available();

// Selects a set by name for the whole process, whatever GRADWIRE_KERNELS says. An empty name restores the default,
// which the next call looks up again. For tests and benchmarks. Thread-safe: a reduction under way ends with the set
// with which it began. Throws InvalidArgument as selected() does.
void select(std::string_view name);

}  // namespace gradwire::kernels
