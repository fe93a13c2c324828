// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Several hosts on one machine: network namespaces with a switch between them, for tests and benchmarks.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace gradwire::bench {

// Hosts 0 to N-1, each with its own network interface `eth0`, host name and loopback interface, and a bridge that
// connects the hosts. Memory and files are shared with the machine. The hosts have no names in the file system: the
// kernel removes a host when its last process ends, in any way.
class NetworkHosts {
 public:
  // Returns one sentence with the reason why this machine cannot make hosts; empty when it can.
  static std::string why_not();

  // Makes the hosts. Throws a std::runtime_error that states what the machine refused.
  explicit NetworkHosts(int hosts);
  // Kills the processes that still run on the hosts.
  ~NetworkHosts();
  NetworkHosts(const NetworkHosts&) = delete;
  NetworkHosts& operator=(const NetworkHosts&) = delete;

  int count() const noexcept { return static_cast<int>(hosts_.size()) - 1; }
  std::string name(int host) const;     // "host-a", "host-b", ...
  std::string address(int host) const;  // "10.83.0.1", ...
  // Returns the first words of a command line; the command after these words runs on the host.
  std::vector<std::string> enter(int host) const;
  // Returns a shell script that takes a host's name and a command line, and runs the command line on that host, as ssh
  // does.
  std::string shell_script() const;

  // Limits both directions of every host's link, with tc's units: "1gbit", "100mbit". Throws std::runtime_error.
  void shape(const std::string& rate);
  // Delays every packet that leaves a host, with tc's units: "1ms". Call it after shape(). Throws std::runtime_error
  // when the kernel has no netem.
  void delay(const std::string& time);
  // Takes a host's link at the switch down, like a pulled cable, or up again. No connection is reset.
  void set_link(int host, bool up);
  // From here on, what the two hosts send to each other vanishes. No connection is reset; other paths stay.
  void cut(int one, int other);

  // The bytes that a host has sent and received on eth0 since its start, headers included.
  struct Traffic {
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
  };
  Traffic traffic(int host) const;

  // Returns the processes on a host.
  std::vector<pid_t> processes(int host) const;

 private:
  struct Holder {  // a process that keeps a namespace alive
    pid_t pid = -1;
    std::string name;
  };

  void make_holder(const std::string& name);
  void configure(const Holder& where, const std::string& batch, const char* tool) const;
  std::size_t switch_index() const noexcept { return hosts_.size() - 1; }
  void stop() noexcept;

  std::vector<Holder> hosts_;  // the last one is the switch
  bool shaped_ = false;
};

}  // namespace gradwire::bench
