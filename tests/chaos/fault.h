// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A fault of the chaos tests: what happens to which rank of which world, all of it drawn from one number.
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
  gone,    // by any signal, or by exit without a word
  well,    // like every other rank
};

// A class of faults: the same thing goes wrong in the same place.
struct FaultClass {
  const char* name;
  Ending ending;
  int weight;  // how often it is drawn, among all classes
  // What each rank does. Reports through Member what it finds wrong.
  void (*play)(Member& self);
  int victims = 1;
  bool strikes_rank_0 = false;
  bool ranks_are_threads = false;
  bool needs_root = false;  // it makes ranks other users
};

// One fault. Everything that a play does beyond these fields comes from Random(seed).
struct Fault {
  std::uint64_t seed = 0;
  const FaultClass* what = nullptr;
  int ranks = 2;
  int victim = 0;            // two victims: this one and the rank after it
  int warm_up = 0;           // calls that all ranks make before anything goes wrong
  bool as_nobody = false;    // all ranks run as an ordinary user
  bool tcp_store = false;    // they meet through a TcpStore that a process beside them serves, else through a FileStore
  bool new_world = false;    // the survivors make a smaller world afterwards and use it
  std::uint64_t detail = 0;  // what the class makes of it
};

// Those that this user can play.
std::span<const FaultClass> fault_classes();

// The fault that `seed` stands for. (Another one for root, who can become another user.)
Fault draw_fault(std::uint64_t seed);

bool is_victim(const Fault& fault, int rank);

std::ostream& operator<<(std::ostream& out, const Fault& fault);

// The files of classes; see the comments there.
std::span<const FaultClass> collective_faults();
std::span<const FaultClass> message_faults();
std::span<const FaultClass> request_faults();
std::span<const FaultClass> life_faults();
std::span<const FaultClass> store_faults();
std::span<const FaultClass> fork_faults();
std::span<const FaultClass> limit_faults();

}  // namespace gradwire::testing
