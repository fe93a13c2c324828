// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "bench/coordinator.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "gradwire/base/deadline.h"

namespace gradwire::bench {
namespace {

constexpr int kStartSeconds = 120;
constexpr int kMeasureSeconds = 600;

[[noreturn]] void become(const std::vector<std::string>& words) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::vector<char*> arguments;
  for (const std::string& word : words) {
    if (arguments.empty() && word.find('=') != std::string::npos) {
      ::putenv(const_cast<char*>(word.c_str()));
    } else {
      arguments.push_back(const_cast<char*>(word.c_str()));
    }
  }
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  const std::string text =
      "gradwire-bench: cannot start " + std::string(arguments[0]) + ": " + std::strerror(errno) + "\n";
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
  ::_exit(127);
}

[[noreturn]] void throw_errno(const std::string& what) { throw std::runtime_error(what + ": " + std::strerror(errno)); }

bool wait_readable(const UniqueFd& fd, int seconds) {
  const Deadline deadline = Deadline::after(std::chrono::seconds(seconds));
  for (;;) {
    pollfd entry{fd.get(), POLLIN, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(deadline.remaining().count()));
    if (ready < 0 && errno != EINTR) throw_errno("poll");
    if (ready >= 0) return ready > 0;
  }
}

// Adds what a worker says of one measurement to `made`; returns its error, if it has one.
std::optional<ContestantError> add_reply(const std::string& line, const std::string& who, int rank, Reply& made) {
  std::istringstream reply(line);
  std::string verb;
  reply >> verb;
  std::optional<ContestantError> error;
  if (verb == "error") {
    std::string text;
    std::getline(reply >> std::ws, text);
    error.emplace(who, text);
  }
  std::vector<double> samples;
  for (std::string word; reply >> word;) {
    if (word == "bytes") {
      std::size_t bytes = 0;
      reply >> bytes;
      if (rank == 0) made.bytes = bytes;
      made.bytes_of_all += bytes;
    } else {
      samples.push_back(std::stod(word));
    }
  }
  made.slowest.resize(std::max(made.slowest.size(), samples.size()));
  std::transform(samples.begin(), samples.end(), made.slowest.begin(), made.slowest.begin(),
                 [](double own, double other) { return std::max(own, other); });
  if (rank == 0) made.samples = std::move(samples);
  return error;
}

}  // namespace

ScratchFolder::ScratchFolder() {
  std::string name = std::filesystem::temp_directory_path() / "gradwire-bench-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a folder in " + name);
  path_ = name;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Coordinator::Coordinator(const std::string& socket_path) : listener_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof(address.sun_path))
    throw std::runtime_error("the path of the socket is too long, name a shorter TMPDIR: " + socket_path);
  socket_path.copy(address.sun_path, socket_path.size());
  if (!listener_ || ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(listener_.get(), 256) != 0) {
    throw_errno("cannot listen at " + socket_path);
  }
}

Coordinator::~Coordinator() {
  for (auto& [name, ranks] : connections_) {
    for (auto& [rank, connection] : ranks) {
      [[maybe_unused]] const ssize_t n = ::send(connection.fd.get(), "quit\n", 5, MSG_NOSIGNAL);
      connection.fd.reset();
    }
  }
  listener_.reset();
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  for (const pid_t process : processes_) {
    while (::waitpid(process, nullptr, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > patience) {
        ::kill(process, SIGKILL);
        ::waitpid(process, nullptr, 0);
        break;
      }
      ::poll(nullptr, 0, 10);
    }
  }
}

void Coordinator::start(const Contestant& contestant) {
  for (const std::vector<std::string>& command : contestant.commands) {
    const pid_t process = ::fork();
    if (process < 0) throw std::runtime_error("cannot fork");
    if (process == 0) become(command);
    processes_.push_back(process);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(kStartSeconds);
  while (connections_[contestant.name].size() < static_cast<std::size_t>(contestant.ranks)) {
    accept_one(1);
    for (auto process = processes_.begin(); process != processes_.end();) {
      int status = 0;
      if (::waitpid(*process, &status, WNOHANG) <= 0) {
        ++process;
        continue;
      }
      process = processes_.erase(process);
      throw std::runtime_error("contestant " + contestant.name + " ended before it began (what it wrote stands above)");
    }
    if (std::chrono::steady_clock::now() > deadline)
      throw std::runtime_error("contestant " + contestant.name + " did not start");
  }
}

void Coordinator::accept_one(int seconds) {
  if (!wait_readable(listener_, seconds)) return;
  Connection connection;
  connection.fd = UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!connection.fd) throw_errno("cannot accept a worker");
  std::istringstream hello(read_line(connection, "a worker"));
  std::string verb;
  std::string name;
  int rank = -1;
  hello >> verb >> name >> rank;
  if (verb != "hello" || rank < 0) throw std::runtime_error("a worker said something else than hello");
  connections_[name][rank] = std::move(connection);
}

std::string Coordinator::read_line(Connection& connection, const std::string& who) {
  for (;;) {
    const auto end = connection.pending.find('\n');
    if (end != std::string::npos) {
      std::string line = connection.pending.substr(0, end);
      connection.pending.erase(0, end + 1);
      return line;
    }
    char buffer[65536];
    if (!wait_readable(connection.fd, kMeasureSeconds)) throw std::runtime_error(who + " does not answer");
    const ssize_t got = ::read(connection.fd.get(), buffer, sizeof(buffer));
    if (got <= 0) throw std::runtime_error(who + " ended in the middle of a measurement");
    connection.pending.append(buffer, static_cast<std::size_t>(got));
  }
}

Reply Coordinator::measure(const std::string& contestant, const Measurement& what) {
  std::ostringstream command;
  command << "measure " << what.bytes << ' ' << what.iterations << ' ' << what.warm_up << ' ' << what.variant << ' '
          << (what.cold ? "cold" : "hot") << '\n';
  const std::string bytes = command.str();
  auto& ranks = connections_.at(contestant);
  for (auto& [rank, connection] : ranks) {
    if (::send(connection.fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size())) {
      throw std::runtime_error("rank " + std::to_string(rank) + " of " + contestant + " is gone");
    }
  }
  Reply made;
  std::optional<ContestantError> first_error;
  for (auto& [rank, connection] : ranks) {
    const std::string who = "rank " + std::to_string(rank) + " of " + contestant;
    auto error = add_reply(read_line(connection, who), who, rank, made);
    if (error && !first_error) first_error = std::move(error);
  }
  if (first_error) throw *first_error;
  return made;
}

}  // namespace gradwire::bench
