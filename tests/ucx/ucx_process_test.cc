// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests what the backend ucx does to its process and its machine: signals, memory calls, what strangers find; that its
// bits are those of shm; and what it refuses at the door.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "gradwire/backend/registry.h"
#include "gradwire/base/error.h"
#include "gradwire/base/os_handles.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/prefix_store.h"
#include "tests/conformance/child_process.h"
#include "tests/conformance/conformance.h"

namespace gradwire::testing {
namespace {

constexpr World kWorld{Kind::ucx, 2};

// --- the process ---------------------------------------------------------------------------------------------------

std::vector<void*> signal_handlers() {
  std::vector<void*> handlers;
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action {};
    ::sigaction(number, nullptr, &action);
    handlers.push_back(reinterpret_cast<void*>(action.sa_handler));
  }
  return handlers;
}

// The first instructions of the calls that UCX hooks by writing over them, unless it is told not to.
std::vector<std::array<unsigned char, 16>> first_instructions() {
  std::vector<std::array<unsigned char, 16>> all;
  for (const auto address : {reinterpret_cast<const void*>(&::mmap), reinterpret_cast<const void*>(&::munmap),
                             reinterpret_cast<const void*>(&::mremap), reinterpret_cast<const void*>(&::madvise),
                             reinterpret_cast<const void*>(&::sbrk), reinterpret_cast<const void*>(&::brk)}) {
    std::memcpy(all.emplace_back().data(), address, 16);
  }
  return all;
}

void own_handler(int) {}

TEST(UcxProcess, SignalsAndMemoryCallsStayTheProgramsOwn) {
  ChildProcess child("a process", [] {
    ::signal(SIGUSR1, &own_handler);
    ::signal(SIGSEGV, &own_handler);
    const auto handlers = signal_handlers();
    const auto instructions = first_instructions();
    const auto backend = make_backend("ucx", {std::make_shared<HashStore>(), 0, 1});
    backend->channel().barrier(guarded());
    EXPECT_EQ(signal_handlers(), handlers);
    EXPECT_EQ(first_instructions(), instructions);
  });
  child.expect_success(Deadline::after(kGuard));
}

TEST(UcxProcess, AnInterfaceThatIsNotThereIsRefusedAndTheOthersAreListed) {
  ChildProcess child("a process", [] {
    ::setenv("GRADWIRE_INTERFACE", "no-such0", 1);
    const std::string text = expect_throw<InvalidArgument>([] {
      make_backend("ucx", {std::make_shared<HashStore>(), 0, 1});
    });
    expect_contains(text, "GRADWIRE_INTERFACE=no-such0");
    expect_contains(text, "lo");
    ::setenv("GRADWIRE_INTERFACE", "lo", 1);
    make_backend("ucx", {std::make_shared<HashStore>(), 0, 1})->channel().barrier(guarded());
    ::setenv("GRADWIRE_HEARTBEAT_MS", "soon", 1);
    expect_contains(expect_throw<InvalidArgument>([] {
                      make_backend("ucx", {std::make_shared<HashStore>(), 0, 1});
                    }),
                    "GRADWIRE_HEARTBEAT_MS");
  });
  child.expect_success(Deadline::after(kGuard));
}

// --- strangers -----------------------------------------------------------------------------------------------------

// The ports on which this process listens.
std::set<int> listening_ports() {
  std::set<std::string> own;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    own.insert(std::filesystem::read_symlink(entry.path(), error).string());
  }
  std::ifstream table("/proc/self/net/tcp");
  std::set<int> ports;
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::string slot, local, remote, state, queues, timer, retransmits, user, timeout, inode;
    words >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> user >> timeout >> inode;
    if (state == "0A" && own.contains(concat("socket:[", inode, "]"))) {
      ports.insert(static_cast<int>(std::strtol(local.substr(local.find(':') + 1).c_str(), nullptr, 16)));
    }
  }
  return ports;
}

// Returns whether somebody took the connection.
bool send_garbage(int port, const std::string& bytes) {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
  const timeval patience{0, 200'000};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) return false;
  static_cast<void>(!::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
  return true;
}

// The beginning of UCX's protocol over TCP, and then nonsense: UCX 1.13 would end the process.
std::string malicious_greeting() {
  const std::uint64_t magic = 0xCAFEBABE12345678U;
  std::string text(sizeof(magic), '\0');
  std::memcpy(text.data(), &magic, sizeof(magic));
  return text + std::string(100, '\x5a');
}

TEST(UcxStrangers, FindAClosedDoorOnceTheRanksAreTogether) {
  run_world(kWorld, [](RankContext& context) {
    const auto sum = [&] {
      std::vector<float> data(10'000, 1.0F);
      context.channel().all_reduce(data.data(), data.size(), DType::f32, ReduceOp::sum(), guarded());
      EXPECT_EQ(data[9'999], 2.0F);
    };
    sum();
    const std::set<int> ports = listening_ports();
    ASSERT_FALSE(ports.empty()) << "there is no door to try";
    for (const int port : ports) {
      for (const std::string& bytes : {std::string(), std::string("GET / HTTP/1.1\r\n\r\n"), malicious_greeting()}) {
        EXPECT_FALSE(send_garbage(port, bytes)) << "a stranger was let in";
      }
      sum();
    }
    // The other rank has tried all doors, too.
    context.meet("tried");
    sum();
  });
}

// More than 16 ranks connect with each other later, too: their doors stay open.
TEST(UcxStrangers, DisturbNobodyWhereTheDoorStaysOpen) {
  run_world({Kind::ucx, kWideWorld}, [](RankContext& context) {
    const auto sum = [&] {
      std::int64_t value = 1;
      context.channel().all_reduce(&value, 1, DType::i64, ReduceOp::sum(), guarded());
      EXPECT_EQ(value, kWideWorld);
    };
    sum();
    bool was_let_in = false;
    for (const int port : listening_ports()) {
      for (const std::string& bytes : {std::string(), std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100, '\0')}) {
        was_let_in = send_garbage(port, bytes) || was_let_in;
        sum();
      }
    }
    EXPECT_TRUE(was_let_in) << "there was no door to try";
    // A rank that is no partner still finds its way in.
    const int distance = 7;
    const int mine = context.rank();
    int heard = -1;
    const int from = (mine + kWideWorld - distance) % kWideWorld;
    const auto receive = context.channel().irecv(&heard, sizeof heard, from, 1);
    context.channel().isend(&mine, sizeof mine, (mine + distance) % kWideWorld, 1)->wait(Deadline::after(kGuard));
    receive->wait(Deadline::after(kGuard));
    EXPECT_EQ(heard, from);
    context.meet("end");
  });
}

// --- bits ----------------------------------------------------------------------------------------------------------

std::unique_ptr<Backend> make_over(RankContext& context, const char* name) {
  return make_backend(name, {std::shared_ptr<Store>(std::make_shared<PrefixStore>(name, context.store().clone())),
                             context.rank(), context.size(), kGuard});
}

TEST(UcxBits, AreThoseOfShmForRandomReductions) {
  run_world_unjoined({Kind::ucx, 3}, [](RankContext& context) {
    const auto ucx = make_over(context, "ucx");
    const auto shm = make_over(context, "shm");
    Random random(2024);
    for (int round = 0; round < 200; ++round) {
      const std::size_t count = 1 + random.below(round % 20 == 0 ? 400'000 : 3'000);
      const ReduceOp op = random.below(2) == 0 ? ReduceOp::sum() : ReduceOp::product();
      Bytes one = make_input(DType::f32, count, context.rank(), random.next());
      Bytes other = one;
      ucx->channel().all_reduce(one.data(), count, DType::f32, op, guarded());
      shm->channel().all_reduce(other.data(), count, DType::f32, op, guarded());
      ASSERT_EQ(std::memcmp(one.data(), other.data(), one.size()), 0) << "round " << round;
    }
  });
}

}  // namespace
}  // namespace gradwire::testing
