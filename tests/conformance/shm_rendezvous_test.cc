// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The rendezvous of backend shm under limits, deaths and impostors. Proves: the largest world starts for an ordinary
// user with few descriptors, or all ranks learn how many descriptors are needed; every other rank names a rank that
// dies, also when it arrives later; a rank sends nothing to, and maps nothing from, a process that is not rank 0 of its
// user.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gradwire/backend/registry.h"
#include "gradwire/backend/shared/max_ranks.h"
#include "gradwire/backend/shm/descriptor_socket_internal.h"
#include "gradwire/backend/shm/meeting_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/trace.h"
#include "gradwire/store/file_store.h"
#include "tests/conformance/child_process.h"
#include "tests/conformance/conformance.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::testing {
namespace {

constexpr uid_t kNobody = 65534;

std::unique_ptr<Backend> join(const std::string& path, int rank, int size) {
  BackendOptions options;
  options.store = std::make_shared<FileStore>(path);
  options.rank = rank;
  options.size = size;
  options.timeout = kGuard;
  return make_backend("shm", options);
}

// In a child: goes on as an ordinary user, whom limits bind.
void become_nobody() {
  if (::geteuid() != 0) return;
  ASSERT_EQ(::setresgid(kNobody, kNobody, kNobody), 0);
  ASSERT_EQ(::setresuid(kNobody, kNobody, kNobody), 0);
  ::prctl(PR_SET_DUMPABLE, 1);  // or /proc/self would still be root's
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
}

void allow_descriptors(rlim_t count) {
  const rlimit both{count, count};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &both), 0);
}

// In a child: closes the pipes through which the parent hears of the children before it, which count as open here.
void close_pipes_of_others() {
  std::vector<int> others;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    struct stat about {};
    const bool is_pipe = ::fstat(fd, &about) == 0 && S_ISFIFO(about.st_mode);
    if (fd > 2 && is_pipe && (::fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY) others.push_back(fd);
  }
  for (const int fd : others) ::close(fd);
}

// A folder that every user may write into.
class OpenFolder {
 public:
  OpenFolder() { std::filesystem::permissions(folder_.path(), std::filesystem::perms::all); }
  std::string file(const std::string& name) const { return concat(folder_.path(), "/", name); }

 private:
  TemporaryFolder folder_;
};

// The ranks of one world, each an ordinary user's process that may have `descriptors` open.
std::vector<ChildProcess> start_ranks(const std::string& store, int size, rlim_t descriptors,
                                      const std::function<void(int rank)>& body) {
  std::vector<ChildProcess> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back(concat("rank ", rank, " of ", size, " on ", store), [=] {
      become_nobody();
      close_pipes_of_others();
      allow_descriptors(descriptors);
      body(rank);
    });
  }
  return ranks;
}

void expect_success(std::vector<ChildProcess>& ranks) {
  const Deadline guard = Deadline::after(3 * kGuard);
  for (ChildProcess& rank : ranks) rank.expect_success(guard);
}

void meet_and_use(const std::string& store, int rank, int size) {
  const auto backend = join(store, rank, size);
  const Allocation memory = backend->channel().allocate(4096, guarded());
  EXPECT_TRUE(memory.in_place);
  backend->channel().barrier(guarded());
}

TEST(ShmRendezvous, ManyRanksOfAnOrdinaryUserMeetWithAThousandDescriptors) {
  const OpenFolder folder;
  for (const int size : {40, kMaxRanksOfHost}) {
    const std::string store = folder.file(std::to_string(size));
    auto ranks = start_ranks(store, size, 1024, [=](int rank) { meet_and_use(store, rank, size); });
    expect_success(ranks);
  }
}

// Each world has more descriptors in flight than half of what the user may have.
TEST(ShmRendezvous, WorldsOfOneUserThatMeetAtTheSameTimeWaitForEachOther) {
  constexpr int kSize = 24;
  const OpenFolder folder;
  std::vector<std::vector<ChildProcess>> worlds;
  for (int world = 0; world < 4; ++world) {
    const std::string store = folder.file(std::to_string(world));
    worlds.push_back(start_ranks(store, kSize, 64, [=](int rank) { meet_and_use(store, rank, kSize); }));
  }
  for (auto& world : worlds) expect_success(world);
}

TEST(ShmRendezvous, TooFewDescriptorsAreAnErrorOnAllRanksThatStatesTheNeed) {
  constexpr int kSize = 20;
  const OpenFolder folder;
  const std::string store = folder.file("store");
  auto ranks = start_ranks(store, kSize, 40, [=](int rank) {
    const std::string text = expect_throw<ResourceError>([&] { join(store, rank, kSize); });
    expect_contains(text, concat("rank 0 of 20 needs ", shm::descriptors_needed(0, kSize), " descriptors"));
    expect_contains(text, "40 descriptors open (ulimit -n); raise that limit to ");
  });
  expect_success(ranks);
}

// The need that the error states is enough, and no more than twice what is used.
TEST(ShmRendezvous, TheStatedNeedIsEnough) {
  constexpr int kSize = 20;
  const OpenFolder folder;
  const std::string store = folder.file("store");
  std::vector<ChildProcess> ranks;
  for (int rank = 0; rank < kSize; ++rank) {
    ranks.emplace_back(concat("rank ", rank), [=] {
      become_nobody();
      const auto begin = std::filesystem::directory_iterator("/proc/self/fd");
      const auto open = static_cast<rlim_t>(std::distance(begin, std::filesystem::directory_iterator{}));
      allow_descriptors(open + 2 + shm::descriptors_needed(rank, kSize));  // and the store's own
      meet_and_use(store, rank, kSize);
    });
  }
  expect_success(ranks);
}

// ---- deaths

enum class Moment { begins, waits };

// Has said who it is, and has not connected yet.
void die_at_the_beginning(void*, const trace::Event& event) noexcept {
  if (std::string_view(event.name) == "rendezvous.begin") ::raise(SIGKILL);
}

// Runs ranks 0 to 3, of which `victim` dies at `moment`, and rank 3 comes when the others know.
void play_death(int victim, Moment moment) {
  SCOPED_TRACE(concat("rank ", victim, moment == Moment::begins ? " dies as it begins" : " dies as it waits"));
  constexpr int kSize = 4;
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/store";
  std::vector<ChildProcess> ranks;
  const auto expect_named = [&path, victim](int rank) {
    try {
      join(path, rank, kSize);
      ADD_FAILURE() << "a world without rank " << victim;
    } catch (const PeerError& error) {
      EXPECT_EQ(error.peers(), std::vector<int>{victim}) << error.what();
      expect_contains(error.what(), concat("rank ", victim));
    }
  };
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back(concat("rank ", rank), [&, rank] {
      if (rank != victim) return expect_named(rank);
      if (moment == Moment::begins) trace::set_sink(&die_at_the_beginning, nullptr);
      join(path, rank, kSize);
    });
  }
  const Deadline guard = Deadline::after(kGuard);
  FileStore store(path);
  store.wait(std::vector<std::string>{"process/0", "process/1", "process/2"}, kGuard);
  if (moment == Moment::waits) ranks[static_cast<std::size_t>(victim)].signal(SIGKILL);
  for (int rank = 0; rank < 3; ++rank) {
    if (rank != victim) ranks[static_cast<std::size_t>(rank)].expect_success(guard);
  }
  ChildProcess late("rank 3, late", [&] { expect_named(3); });
  late.expect_success(guard);
}

TEST(ShmRendezvous, ADeathIsNamedByEveryRankEarlyOrLate) {
  for (const int victim : {0, 1, 2}) {
    play_death(victim, Moment::begins);
    play_death(victim, Moment::waits);
  }
}

// Rank 0 dies and nobody has seen it.
TEST(ShmRendezvous, ARankThatFindsNobodyListeningNamesRankZero) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/store";
  ChildProcess root("rank 0", [&] { join(path, 0, 2); });
  FileStore store(path);
  const std::string key = "shm/root";
  store.wait({&key, 1}, kGuard);
  root.signal(SIGKILL);
  EXPECT_TRUE(root.wait(Deadline::after(kGuard)).ended);
  try {
    join(path, 1, 2);
    ADD_FAILURE() << "a world without rank 0";
  } catch (const PeerError& error) {
    EXPECT_EQ(error.peers(), std::vector<int>{0}) << error.what();
  }
}

// ---- ranks that are slow

// A rank that has connected may stand still before it says who it is. Neither is it turned away, nor are others kept
// waiting for it.
TEST(ShmRendezvous, ARankThatSaysItsHelloLateIsARank) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/store";
  ChildProcess root("rank 0", [&] {
    try {
      join(path, 0, 2);
      ADD_FAILURE() << "rank 1 has ended";
    } catch (const PeerError& error) {
      EXPECT_EQ(error.peers(), std::vector<int>{1}) << error.what();
    }
  });
  FileStore store(path);
  store.wait(std::vector<std::string>{"shm/root"}, kGuard);
  const shm::RootAddress address = shm::address_from(store.get("shm/root"));
  const auto connect = [&] { return shm::connect_to_abstract_address(address.name, kGuard).socket; };
  const UniqueFd silent = connect();
  UniqueFd late = connect();
  ASSERT_TRUE(silent);
  ASSERT_TRUE(late);
  shm::Packet packet;
  for (int second = 0; second < 2; ++second)
    EXPECT_EQ(shm::receive_packet(late.get(), packet, Milliseconds(1000)), shm::Received::nothing);
  const UniqueFd process = shm::open_own_pidfd();
  const std::array<int, 1> fds{process.get()};
  const Deadline guard = Deadline::after(kGuard);
  ASSERT_EQ(shm::send_packet(late.get(), shm::to_bytes(shm::make_hello(1)), fds, guard), shm::Sent::sent);
  shm::Received received = shm::Received::nothing;
  while (received == shm::Received::nothing && !guard.expired())
    received = shm::receive_packet(late.get(), packet, Milliseconds(1000));
  ASSERT_EQ(received, shm::Received::packet);
  shm::Welcome welcome;
  EXPECT_TRUE(shm::from_bytes(packet.bytes, welcome));
  late.reset();
  root.expect_success(guard);
}

// ---- impostors

// Listens as rank 0 would, and says so in the store.
class Impostor {
 public:
  explicit Impostor(const std::string& path) {
    shm::RootAddress address = shm::address_here();
    listener_ = shm::listen_on_abstract_address(address.name);
    FileStore(path).set("shm/root", shm::to_text(address));
  }
  // Whether anybody sent it anything within a moment after connecting.
  bool was_told_something() const {
    pollfd entry{listener_.get(), POLLIN, 0};
    if (::poll(&entry, 1, 0) <= 0) return false;
    const UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    std::array<char, 64> bytes{};
    return ::recv(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0;
  }
  int listener() const { return listener_.get(); }

 private:
  UniqueFd listener_;
};

TEST(ShmRendezvous, ANameThatAnotherUserHoldsIsToldNothing) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be two users";
  const OpenFolder folder;
  const std::string path = folder.file("store");
  FileStore(path).set("made", "by root");
  std::filesystem::permissions(path, std::filesystem::perms::all);
  ChildProcess impostor("the impostor", [&] {
    become_nobody();
    const Impostor listening(path);
    FileStore store(path);
    store.wait(std::vector<std::string>{"refused"}, kGuard);
    EXPECT_FALSE(listening.was_told_something());
  });
  const std::string text = expect_throw<InvalidArgument>([&] { join(path, 1, 2); });
  expect_contains(text, concat("user ", kNobody, " listens where rank 0 should"));
  FileStore(path).set("refused", "");
  impostor.expect_success(Deadline::after(kGuard));
}

// Memory that a rank must not map: shorter than the welcome says, or not sealed.
class BadMemory : public ::testing::TestWithParam<bool> {};

TEST_P(BadMemory, IsRefusedBeforeItIsMapped) {
  const bool sealed = GetParam();
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/store";
  const Impostor root(path);
  ChildProcess member("rank 1", [&] {
    try {
      join(path, 1, 2);
      ADD_FAILURE() << "mapped";
    } catch (const PeerError& error) {
      EXPECT_EQ(error.peers(), std::vector<int>{0});
      expect_contains(error.what(), sealed ? "holds 4096 bytes" : "not sealed");
    }
  });
  const auto socket = shm::accept_own_user(root.listener(), kGuard);
  ASSERT_TRUE(socket);
  shm::Packet hello;
  ASSERT_EQ(shm::receive_packet(socket->get(), hello, kGuard), shm::Received::packet);
  constexpr std::size_t kStride = std::size_t{1} << 20;
  const UniqueFd memory(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(memory.get(), sealed ? 4096 : 2 * kStride), 0);
  if (sealed) {
    ASSERT_EQ(::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  }
  shm::Welcome welcome;
  welcome.stride = kStride;
  const int pidfd = hello.fds.at(0).get();
  const std::array<int, 3> fds{memory.get(), pidfd, pidfd};
  ASSERT_EQ(shm::send_packet(socket->get(), shm::to_bytes(welcome), fds, Deadline::after(kGuard)), shm::Sent::sent);
  member.expect_success(Deadline::after(kGuard));
}

INSTANTIATE_TEST_SUITE_P(ShmRendezvous, BadMemory, ::testing::Bool(), [](const auto& info) {
  return info.param ? std::string("TooShort") : std::string("NotSealed");
});

}  // namespace
}  // namespace gradwire::testing
