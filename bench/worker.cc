// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "bench/worker.h"

#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <stdexcept>

namespace gradwire::bench {
namespace {

class Line {
 public:
  explicit Line(const std::string& path) : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    if (fd_ < 0 || ::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      throw std::runtime_error("cannot reach the coordinator at " + path);
    }
  }
  ~Line() { ::close(fd_); }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  bool read(std::string& line) {
    for (;;) {
      const auto end = pending_.find('\n');
      if (end != std::string::npos) {
        line = pending_.substr(0, end);
        pending_.erase(0, end + 1);
        return true;
      }
      char buffer[4096];
      const ssize_t got = ::read(fd_, buffer, sizeof(buffer));
      if (got <= 0) return false;
      pending_.append(buffer, static_cast<std::size_t>(got));
    }
  }
  void write(const std::string& line) {
    const std::string bytes = line + "\n";
    for (std::size_t sent = 0; sent < bytes.size();) {
      const ssize_t n = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) throw std::runtime_error("the coordinator is gone");
      sent += static_cast<std::size_t>(n);
    }
  }

 private:
  int fd_;
  std::string pending_;
};

// Larger than any cache, so that touching it all leaves nothing else in one.
void evict_caches() {
  static thread_local std::vector<char> memory(std::size_t{64} << 20);
  for (std::size_t i = 0; i < memory.size(); i += 64) memory[i] = static_cast<char>(memory[i] + 1);
}

std::vector<double> measure(const Measurement& what, const Subject& subject) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> samples;
  subject.prepare(what);
  for (int i = 0; i < what.warm_up + what.iterations; ++i) {
    subject.refill();
    if (what.cold) evict_caches();
    subject.barrier();
    const auto begin = Clock::now();
    subject.run();
    const std::chrono::duration<double, std::micro> took = Clock::now() - begin;
    if (i >= what.warm_up) samples.push_back(took.count());
  }
  subject.barrier();
  return samples;
}

}  // namespace

void pin_to_processor(int index) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  std::vector<int> processors;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &allowed)) processors.push_back(i);
  }
  if (processors.empty()) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(processors[static_cast<std::size_t>(index) % processors.size()], &one);
  ::sched_setaffinity(0, sizeof(one), &one);
}

void serve(const std::string& socket_path, const std::string& contestant, int rank, const Subject& subject) {
  Line line(socket_path);
  line.write("hello " + contestant + " " + std::to_string(rank));
  for (std::string command; line.read(command) && command != "quit";) {
    std::istringstream words(command);
    std::string verb;
    std::string temperature;
    Measurement what;
    words >> verb >> what.bytes >> what.iterations >> what.warm_up >> what.variant >> temperature;
    what.cold = temperature == "cold";
    try {
      const std::vector<double> samples = measure(what, subject);
      std::ostringstream reply;
      reply << (rank == 0 ? "samples" : "done");
      for (const double sample : samples) reply << ' ' << sample;
      if (subject.bytes) reply << " bytes " << subject.bytes();
      line.write(reply.str());
    } catch (const std::exception& error) {
      line.write(std::string("error ") + error.what());
      return;
    }
  }
}

}  // namespace gradwire::bench
