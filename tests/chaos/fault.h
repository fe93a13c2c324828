// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A fault of the chaos tests. One number determines the fault, the victim and the world.
#pragma once

#include <cstdint>
#include <ostream>
#include <span>
#include <string>

#include "tests/conformance/oracle.h"

namespace gradwire::testing {

inline constexpr int kMaxRanks = 6;

class Member;

// How the victim's process must end.
enum class Ending {
  killed,  // by SIGKILL
  gone,    // by any signal, or by exit without leaving the group
  well,    // like every other rank
};

// A class of faults: the same failure in the same place.
struct FaultClass {
  const char* name;
  Ending ending;
  int weight;  // the relative frequency of the class
  // The function that each rank runs. It reports complaints through Member.
  void (*play)(Member& self);
  int victims = 1;
  bool strikes_rank_0 = false;
  bool ranks_are_threads = false;
  bool needs_root = false;  // makes ranks run as other users
};

// One fault. Random(seed) determines everything else that the run of the fault does.
struct Fault {
  std::uint64_t seed = 0;
  const FaultClass* what = nullptr;
  int ranks = 2;
  int victim = 0;            // with two victims: this rank and the next one
  int warm_up = 0;           // calls that all ranks make before the fault
  bool as_nobody = false;    // all ranks run as an ordinary user
  bool tcp_store = false;    // the rendezvous uses a TcpStore that another process serves; else a FileStore
  bool new_world = false;    // the survivors make a smaller world afterwards and use it
  std::uint64_t detail = 0;  // for the class's own use
};

// The classes that this user can run.
std::span<const FaultClass> fault_classes();

// Returns the fault of `seed`. For root the fault is another one, because root has more classes.
Fault draw_fault(std::uint64_t seed);

bool is_victim(const Fault& fault, int rank);

std::ostream& operator<<(std::ostream& out, const Fault& fault);

// The classes of each file; see the comments there.
std::span<const FaultClass> collective_faults();
std::span<const FaultClass> message_faults();
std::span<const FaultClass> request_faults();
std::span<const FaultClass> life_faults();
std::span<const FaultClass> store_faults();
std::span<const FaultClass> fork_faults();
std::span<const FaultClass> limit_faults();

}  // namespace gradwire::testing
