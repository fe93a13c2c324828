// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Many ranks of the backend ucx on one host: wide_ranks FIRST COUNT SIZE HOST PORT ROUNDS [KILLED FILE MICROSECONDS].
// Starts the ranks FIRST to FIRST + COUNT - 1 as child processes; rank 0 runs the store at HOST:PORT. The ranks meet
// and do ROUNDS collectives of all kinds, whose results are integers that each rank knows. Rank 0 prints what it cost.
// With KILLED, that rank is killed so long after its first round, the time is written to FILE, and the others must name
// it, and it alone.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/backend/registry.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/store/tcp_store.h"

namespace {

using namespace gradwire;
using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

struct Arguments {
  int first = 0;
  int count = 0;
  int size = 0;
  std::string host;
  int port = 0;
  int rounds = 0;
  int killed = -1;
  std::string file;
  int kill_after_us = 0;
};

// What the ranks of this host tell their parent.
struct Told {
  double named_after_ms = -1;
  std::atomic<const char*> doing = nullptr;  // the collective; null before the first
};

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void require(bool right, const char* what, int round) {
  if (!right) throw std::runtime_error(concat(what, " of round ", round, " gave a wrong result"));
}

CallOptions options() { return {Deadline::after(seconds(240)), {}}; }

// Element i of rank r's input. Sums over ranks stay exact, and differ for every i and round.
std::int64_t value(int rank, std::size_t i, int round) { return (rank + 1) * static_cast<std::int64_t>(i + 7) + round; }
std::int64_t sum_of(int ranks, std::size_t i, int round) {
  const std::int64_t all = ranks;
  return all * (all + 1) / 2 * static_cast<std::int64_t>(i + 7) + all * round;
}

// One round of everything that the ranks do, which all ranks draw alike.
class Rounds {
 public:
  // `messages`: whether ranks also send each other messages. `longest`: elements of the long inputs.
  Rounds(Channel& channel, bool messages, std::size_t longest)
      : channel_(channel), rank_(channel.rank()), size_(channel.size()), messages_(messages), longest_(longest) {}

  void run(int round, std::atomic<const char*>& doing) {
    struct Kind {
      const char* name;
      void (Rounds::*run)(int);
    };
    static constexpr std::array<Kind, 10> kKinds{{{"barrier", &Rounds::barrier},
                                                  {"broadcast", &Rounds::broadcast},
                                                  {"all_reduce", &Rounds::all_reduce},
                                                  {"reduce", &Rounds::reduce},
                                                  {"all_gather", &Rounds::all_gather},
                                                  {"gather", &Rounds::gather},
                                                  {"reduce_scatter", &Rounds::reduce_scatter},
                                                  {"scatter", &Rounds::scatter},
                                                  {"all_to_all", &Rounds::to_each},
                                                  {"send and receive", &Rounds::neighbours}}};
    const Kind& kind = kKinds[static_cast<std::size_t>(round) % (messages_ ? kKinds.size() : kKinds.size() - 1)];
    doing = kind.name;
    (this->*kind.run)(round);
  }

 private:
  using Values = std::vector<std::int64_t>;
  // Mostly short, at times long.
  std::size_t length(int round) const {
    const auto draw = static_cast<std::size_t>(round) * 2654435761U >> 5;
    return round % 7 == 0 ? longest_ / 2 + draw % (longest_ / 2) : 1 + draw % 100;
  }
  int root(int round) const { return round * 31 % size_; }
  Values input(std::size_t count, int rank, int round) const {
    Values values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = value(rank, i, round);
    return values;
  }
  std::vector<void*> slots(Values& values, std::size_t count) const {
    std::vector<void*> pointers;
    for (std::size_t r = 0; r < static_cast<std::size_t>(size_); ++r) pointers.push_back(values.data() + r * count);
    return pointers;
  }
  Values everyones(std::size_t count, int round) const {
    Values all;
    for (int r = 0; r < size_; ++r) {
      const Values its = input(count, r, round);
      all.insert(all.end(), its.begin(), its.end());
    }
    return all;
  }
  Values sums(std::size_t count, int round) const {
    Values all(count);
    for (std::size_t i = 0; i < count; ++i) all[i] = sum_of(size_, i, round);
    return all;
  }

  void barrier(int) { channel_.barrier(options()); }
  void broadcast(int round) {
    const std::size_t count = length(round);
    Values data = rank_ == root(round) ? input(count, rank_, round) : Values(count);
    channel_.broadcast(data.data(), count, DType::i64, root(round), options());
    require(data == input(count, root(round), round), "broadcast", round);
  }
  void all_reduce(int round) {
    Values data = input(length(round), rank_, round);
    channel_.all_reduce(data.data(), data.size(), DType::i64, ReduceOp::sum(), options());
    require(data == sums(data.size(), round), "all_reduce", round);
  }
  void reduce(int round) {
    const Values data = input(length(round), rank_, round);
    Values result(data.size());
    channel_.reduce(data.data(), result.data(), data.size(), DType::i64, ReduceOp::sum(), root(round), options());
    if (rank_ == root(round)) require(result == sums(data.size(), round), "reduce", round);
  }
  void all_gather(int round) {
    const Values data = input(length(round), rank_, round);
    Values all(data.size() * static_cast<std::size_t>(size_));
    channel_.all_gather(data.data(), slots(all, data.size()), data.size(), DType::i64, options());
    require(all == everyones(data.size(), round), "all_gather", round);
  }
  void gather(int round) {
    const std::size_t count = length(round) % 100 + 1;
    const Values data = input(count, rank_, round);
    Values all(rank_ == root(round) ? count * static_cast<std::size_t>(size_) : 0);
    const auto outputs = all.empty() ? std::vector<void*>() : slots(all, count);
    channel_.gather(data.data(), outputs, count, DType::i64, root(round), options());
    if (rank_ == root(round)) require(all == everyones(count, round), "gather", round);
  }
  void scatter(int round) {
    const std::size_t count = length(round) % 100 + 1;
    Values all = rank_ == root(round) ? everyones(count, round) : Values();
    const auto parts = all.empty() ? std::vector<void*>() : slots(all, count);
    const std::vector<const void*> inputs(parts.begin(), parts.end());
    Values data(count);
    channel_.scatter(inputs, data.data(), count, DType::i64, root(round), options());
    require(data == input(count, rank_, round), "scatter", round);
  }
  // Part r of what rank s gives is what s would give with round + r.
  void reduce_scatter(int round) {
    const std::size_t count = length(round) % 100 + 1;
    Values all;
    for (int r = 0; r < size_; ++r) {
      const Values part = input(count, rank_, round + r);
      all.insert(all.end(), part.begin(), part.end());
    }
    const auto parts = slots(all, count);
    const std::vector<const void*> inputs(parts.begin(), parts.end());
    Values result(count);
    channel_.reduce_scatter(inputs, result.data(), count, DType::i64, ReduceOp::sum(), options());
    require(result == sums(count, round + rank_), "reduce_scatter", round);
  }
  // Rank s sends (r + s) % 5 elements to rank r.
  void to_each(int round) {
    const auto elements = [&](int from, int to) { return static_cast<std::size_t>((from + to) % 5); };
    Values out(5 * static_cast<std::size_t>(size_), 0);
    Values in = out;
    std::vector<ConstSlice> inputs;
    std::vector<Slice> outputs;
    for (int r = 0; r < size_; ++r) {
      const std::size_t at = 5 * static_cast<std::size_t>(r);
      for (std::size_t i = 0; i < elements(rank_, r); ++i) out[at + i] = value(rank_, i, round + r);
      inputs.push_back({out.data() + at, elements(rank_, r)});
      outputs.push_back({in.data() + at, elements(r, rank_)});
    }
    channel_.all_to_all(inputs, outputs, DType::i64, options());
    bool right = true;
    for (int r = 0; r < size_; ++r) {
      for (std::size_t i = 0; i < elements(r, rank_); ++i) {
        right = right && in[5 * static_cast<std::size_t>(r) + i] == value(r, i, round + rank_);
      }
    }
    require(right, "all_to_all", round);
  }
  // Messages to a rank that is mostly no partner: they connect when they must.
  void neighbours(int round) {
    const int distance = 37 % size_;
    const int to = (rank_ + distance) % size_;
    const int from = (rank_ + size_ - distance) % size_;
    const Values sent = input(length(round), rank_, round);
    Values taken(sent.size());
    const auto receive = channel_.irecv(taken.data(), taken.size() * sizeof(std::int64_t), from, 7);
    const auto send = channel_.isend(sent.data(), sent.size() * sizeof(std::int64_t), to, 7);
    receive->wait(options().deadline);
    send->wait(options().deadline);
    require(taken == input(sent.size(), from, round), "a message", round);
  }

  Channel& channel_;
  const int rank_;
  const int size_;
  const bool messages_;
  const std::size_t longest_;
};

// KiB of this process that no other shares, with its part of what others share.
std::int64_t memory_kib() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string word; rollup >> word;) {
    if (word != "Pss:") continue;
    std::int64_t kib = 0;
    rollup >> kib;
    return kib;
  }
  return 0;
}

// Connections to ranks: the sockets but for UCX's door and those of the store, of which rank 0 has the server's.
std::int64_t connections(const Arguments& arguments, int rank) {
  std::int64_t count = rank == 0 ? -2 - arguments.size : -2;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    if (std::filesystem::read_symlink(entry.path(), error).string().starts_with("socket:")) ++count;
  }
  return count;
}

// The largest and the mean over all ranks.
struct Spread {
  std::int64_t most = 0;
  double mean = 0;
};
Spread spread(Channel& channel, std::int64_t mine) {
  std::int64_t most = mine;
  std::int64_t sum = mine;
  channel.all_reduce(&most, 1, DType::i64, ReduceOp::max(), options());
  channel.all_reduce(&sum, 1, DType::i64, ReduceOp::sum(), options());
  return {most, static_cast<double>(sum) / channel.size()};
}

std::shared_ptr<Store> open_store(const Arguments& arguments, int rank) {
  TcpStoreOptions store;
  store.host = arguments.host;
  store.port = static_cast<std::uint16_t>(arguments.port);
  store.is_server = rank == 0;
  store.world_size = arguments.size;
  store.wait_for_workers = false;
  store.timeout = seconds(240);
  return std::make_shared<TcpStore>(store);
}

void use(const Arguments& arguments, int rank, Backend& backend, double met_after, std::atomic<const char*>& doing) {
  Channel& channel = backend.channel();
  const auto early = spread(channel, connections(arguments, rank));
  const auto start = Clock::now();
  const bool kills = arguments.killed >= 0;
  // A rank that misses a message of the one that was killed names it and leaves, and the others would name the rank
  // that left: so there are no messages where a rank is killed.
  Rounds rounds(channel, !kills, kills && arguments.size <= 8 ? 300'000 : 5000);
  for (int round = 0; round < arguments.rounds; ++round) {
    rounds.run(round, doing);
    if (rank == 0 && !kills && (round + 1) % 25 == 0) {
      std::printf("round %d done\n", round + 1);
      std::fflush(stdout);
    }
  }
  const double took = since(start);
  const auto memory = spread(channel, memory_kib());
  const auto later = spread(channel, connections(arguments, rank));
  const auto meeting = spread(channel, static_cast<std::int64_t>(met_after * 1000));
  if (rank != 0) return;
  std::printf(
      "%d ranks: the last met after %.2f s; %d collectives in %.2f s; PSS a rank %.1f MiB (most %.1f); connections a "
      "rank "
      "%.1f at the start (most %lld), %.1f at the end (most %lld)\n",
      arguments.size, static_cast<double>(meeting.most) / 1000, arguments.rounds, took, memory.mean / 1024,
      static_cast<double>(memory.most) / 1024, early.mean, static_cast<long long>(early.most), later.mean,
      static_cast<long long>(later.most));
}

// Returns the exit status.
int live(const Arguments& arguments, int rank, Told& told) {
  try {
    const auto store = open_store(arguments, rank);
    const auto start = Clock::now();
    {
      const auto backend =
          make_backend("ucx", {std::make_shared<PrefixStore>("ucx", store), rank, arguments.size, seconds(240)});
      try {
        use(arguments, rank, *backend, since(start), told.doing);
      } catch (const PeerError& error) {
        const auto now = Clock::now().time_since_epoch();
        if (error.peers() != std::vector<int>{arguments.killed}) throw;
        Clock::rep died = 0;
        std::ifstream(arguments.file) >> died;
        told.named_after_ms = std::chrono::duration<double, std::milli>(now - Clock::duration(died)).count();
      }
    }
    if (arguments.killed >= 0) return 0;  // the store may be gone, and nobody needs it
    // The store goes last.
    store->add("done", 1);
    if (rank == 0) {
      const std::string all = "all done";
      while (store->add("done", 0) < arguments.size) {
        try {
          store->wait({&all, 1}, Milliseconds(20));
        } catch (const TimeoutError&) {
        }
      }
    }
    return 0;
  } catch (const std::exception& error) {
    std::printf("rank %d: %s\n", rank, describe(error).c_str());
    std::fflush(stdout);
  }
  return 1;
}

// Kills the rank `victim` at its time, and says when.
void kill_in_time(const Arguments& arguments, pid_t victim, const Told& told) {
  siginfo_t ended{};
  while (told.doing == nullptr && ended.si_pid == 0) {
    ::waitid(P_PID, static_cast<id_t>(victim), &ended, WEXITED | WNOHANG | WNOWAIT);
    std::this_thread::yield();
  }
  std::this_thread::sleep_for(std::chrono::microseconds(arguments.kill_after_us));
  std::ofstream(arguments.file) << Clock::now().time_since_epoch().count() << std::flush;
  ::kill(victim, SIGKILL);
}

int run(const Arguments& arguments) {
  void* const memory = ::mmap(nullptr, sizeof(Told) * static_cast<std::size_t>(arguments.count), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 2;
  auto* const told = static_cast<Told*>(memory);
  std::vector<pid_t> ranks;
  for (int index = 0; index < arguments.count; ++index) {
    std::construct_at(&told[index]);
    ranks.push_back(::fork());
    if (ranks.back() != 0) continue;
    const int status = live(arguments, arguments.first + index, told[index]);
    std::fflush(stdout);
    ::_exit(status);
  }
  const int here = arguments.killed - arguments.first;
  const bool kills_here = arguments.killed >= 0 && here >= 0 && here < arguments.count;
  if (kills_here) {
    kill_in_time(arguments, ranks[static_cast<std::size_t>(here)], told[here]);
  }
  int failed = 0;
  for (int status = 0; ::wait(&status) > 0;) {
    const bool was_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && arguments.killed >= 0;
    if (status != 0 && !was_killed) ++failed;
  }
  if (arguments.killed >= 0) {
    std::vector<double> times;
    for (int index = 0; index < arguments.count; ++index) {
      if (told[index].named_after_ms >= 0) times.push_back(told[index].named_after_ms);
    }
    std::sort(times.begin(), times.end());
    if (!times.empty()) {
      std::printf("%zu ranks named rank %d: half of them after %.1f ms, all after %.1f ms\n", times.size(),
                  arguments.killed, times[times.size() / 2], times.back());
    }
  }
  if (kills_here) std::printf("killed in %s\n", told[here].doing.load());
  std::printf("%d ranks failed\n", failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 7) return 2;
  Arguments arguments{std::atoi(argv[1]),
                      std::atoi(argv[2]),
                      std::atoi(argv[3]),
                      argv[4],
                      std::atoi(argv[5]),
                      std::atoi(argv[6]),
                      -1,
                      "",
                      0};
  if (argc > 9) {
    arguments.killed = std::atoi(argv[7]);
    arguments.file = argv[8];
    arguments.kill_after_us = std::atoi(argv[9]);
  }
  return run(arguments);
}
