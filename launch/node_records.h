// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the launchers of one job tell each other through the store, as JSON. docs/format/launcher.md specifies it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gradwire::launch {

// The version of these records and of how they are used. Launchers of two versions refuse each other.
inline constexpr int kLauncherProtocol = 1;

// What node 0 says about the job before anybody joins.
struct JobRecord {
  int protocol = kLauncherProtocol;
  std::string version;  // gradwire's
  std::string job_id;   // as the user named it; empty: not named
  int nodes = 1;
};

// One launcher that takes part.
struct NodeRecord {
  std::string host;      // the name that the host has for itself
  std::string launcher;  // random: no two launchers share it
  int pid = 0;
  int ranks = 0;
  int attempt = 0;  // the number that the next attempt must have at least
};

// One attempt: which nodes take part and which ranks they hold.
struct Plan {
  std::string job_id;  // never empty
  int attempt = 0;
  int max_restarts = 0;
  std::uint16_t master_port = 0;
  std::vector<NodeRecord> nodes;

  int world() const noexcept;
  int first_rank(int node) const noexcept;
  // "node 1 (host-b, ranks 2, 3)"
  std::string name_of(int node) const;
};

// What became of one node's ranks in an attempt.
struct NodeEnd {
  enum class Kind {
    good,      // all left with 0
    stopped,   // they were stopped because the attempt had failed on another node
    failed,    // one ended badly by itself
    killed,    // the same, of a signal
    vanished,  // the node has not been heard of (node 0 writes this)
    final,     // nothing that a restart would mend: interrupted, --timeout, a program that cannot be started
  };
  Kind kind = Kind::good;
  int exit_code = 0;
  std::string what;  // a sentence without its stop, which names node, host and rank; empty for good and stopped
};

// What node 0 made of all ends.
struct Verdict {
  enum class Kind { done, restart, end };
  Kind kind = Kind::done;
  int exit_code = 0;
  std::string what;  // a sentence, empty for done
};

std::string encode(const JobRecord& record);
std::string encode(const NodeRecord& record);
std::string encode(const Plan& plan);
std::string encode(const NodeEnd& end);
std::string encode(const Verdict& verdict);

// Throw LaunchError when the text is no such record.
JobRecord decode_job(const std::string& text);
NodeRecord decode_node(const std::string& text);
Plan decode_plan(const std::string& text);
NodeEnd decode_end(const std::string& text);
Verdict decode_verdict(const std::string& text);

// The verdict on an attempt that ended so on all nodes. A pure function.
Verdict judge(const Plan& plan, const std::vector<NodeEnd>& ends);

}  // namespace gradwire::launch
