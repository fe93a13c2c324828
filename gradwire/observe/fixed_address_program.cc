// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Makes one call from its function `place`, and prints the address of the function. The program is linked to fixed
// addresses, so this is also the address in the program's own tables.
#include <cstdint>
#include <cstdio>

#include "gradwire/observe/flight_recorder.h"

namespace {

void place() {}

}  // namespace

int main() {
  using namespace gradwire::observe;
  const auto* const address = reinterpret_cast<const char*>(&place);
  FlightGroup group;
  group.open("default", "shm", "", 0, 1);
  CallArguments arguments;
  arguments.kind = CallKind::barrier;
  arguments.return_address = address;
  group.begin(arguments).ended(nullptr);
  std::printf("%llu\n", static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(address)));
  return 0;
}
