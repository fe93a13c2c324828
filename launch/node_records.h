// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The records that the launchers of one job exchange through the store, as JSON. docs/format/launcher.md specifies
// them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gradwire::launch {

// The version of these records and of how they are used. Launchers of two versions refuse each other.
inline constexpr int kLauncherProtocol = 2;

// The properties of the job, which node 0 writes before any node joins.
struct JobRecord {
  int protocol = kLauncherProtocol;
  std::string version;  // gradwire's
  std::string job_id;   // the user's name for the job; empty: not named
  int nodes = 1;
};

// One launcher that takes part.
struct NodeRecord {
  std::string host;      // the host's own name
  std::string launcher;  // random: no two launchers share it
  int pid = 0;
  int ranks = 0;
  int attempt = 0;  // the least number that the next attempt may have
};

// One attempt: which nodes take part and which ranks they hold.
struct Plan {
  std::string job_id;  // never empty
  int attempt = 0;
  int max_restarts = 0;
  std::uint16_t master_port = 0;
  std::vector<NodeRecord> nodes;
  bool watched = false;  // the ranks of all nodes record, and the other nodes tell node 0 how theirs get on

  int world() const noexcept;
  int first_rank(int node) const noexcept;
  // "node 1 (host-b, ranks 2, 3)"
  std::string name_of(int node) const;
};

// How an attempt ended for the ranks of one node.
struct NodeEnd {
  enum class Kind {
    good,      // all ranks exited with 0
    stopped,   // they were stopped because the attempt had failed on another node
    failed,    // a rank failed by itself
    killed,    // a signal killed a rank; not SIGABRT, with which a program ends itself
    vanished,  // the node sent no heartbeat in time (node 0 writes this)
    final,     // a restart would not help: interrupted, --timeout, a program that cannot be started
    followed,  // a rank failed after a call of the rank had failed because of another rank
  };
  Kind kind = Kind::good;
  int exit_code = 0;
  std::string what;       // a sentence without a full stop that names node, host and rank; empty for good and stopped
  std::int64_t time = 0;  // when the rank failed, in milliseconds since 1970 as the node's clock has it; 0: not known
};

// Node 0's decision after all nodes have ended an attempt.
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

// Throw LaunchError when the text is not a record of this kind.
JobRecord decode_job(const std::string& text);
NodeRecord decode_node(const std::string& text);
Plan decode_plan(const std::string& text);
NodeEnd decode_end(const std::string& text);
Verdict decode_verdict(const std::string& text);

// Returns the verdict on an attempt with these ends, one for each node: on the end that explains the others, and among
// ends of one kind on the earliest. A pure function.
Verdict judge(const Plan& plan, const std::vector<NodeEnd>& ends);

}  // namespace gradwire::launch
