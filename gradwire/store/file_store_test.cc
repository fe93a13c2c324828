// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// FileStore: what is said of its file, whole, torn, damaged, removed, while processes die at any moment.
#include "gradwire/store/file_store.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <random>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/os_handles.h"
#include "gradwire/store/store_test_support_internal.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::file_store_test {
namespace {

using store_test::fork_child;
using store_test::message_of;
using store_test::wait_for;
using Keys = std::vector<std::string>;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

class FileStoreTest : public ::testing::Test {
 protected:
  std::shared_ptr<FileStore> open() { return std::make_shared<FileStore>(path_, 2); }

  // Takes the file's lock, as a store does, in a process of its own.
  void lock_exclusively(int fd) {
    struct flock request {};
    request.l_type = F_WRLCK;
    request.l_whence = SEEK_SET;
    if (::fcntl(fd, F_OFD_SETLKW, &request) != 0) throw std::runtime_error("cannot lock");
  }

  test_support::TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/store";
};

TEST_F(FileStoreTest, TakesAFileThatIsMissingOrEmpty) {
  open()->set("key", "value");
  EXPECT_EQ(open()->get("key"), "value");
  const std::string empty = folder_.path() + "/empty";
  write_file(empty, "");
  FileStore(empty, 1).set("key", "value");
  EXPECT_EQ(FileStore(empty, 1).get("key"), "value");
}

TEST_F(FileStoreTest, StaysWhereItIsWhenTheLastStoreGoes) {
  for (int job = 0; job < 3; ++job) {
    const auto store = open();
    EXPECT_EQ(store->add("jobs", 1), job + 1);
    store->queue_push("q", std::to_string(job));
  }
  EXPECT_EQ(open()->queue_length("q"), 3);
  EXPECT_TRUE(std::filesystem::exists(path_)) << "the caller removes it";
}

TEST_F(FileStoreTest, RefusesWhatIsNoStoreAndLeavesItAlone) {
  for (const std::string& text :
       {std::string("some notes of mine\n"), std::string("gwstore\x02", 8), std::string("g!")}) {
    write_file(path_, text);
    EXPECT_TRUE(contains(message_of<StoreError>([&] { open(); }), path_));
    EXPECT_EQ(read_file(path_), text);
  }
  EXPECT_TRUE(contains(message_of<StoreError>([&] { FileStore(folder_.path() + "/no/such/folder"); }), "No such file"));
  EXPECT_THROW(FileStore(folder_.path() + "/"), StoreError) << "a folder";
  ASSERT_EQ(::mkfifo((folder_.path() + "/pipe").c_str(), 0600), 0);
  EXPECT_THROW(FileStore(folder_.path() + "/pipe"), StoreError);
  EXPECT_THROW(FileStore(""), InvalidArgument);
  EXPECT_THROW(FileStore(path_, 0), InvalidArgument);
}

TEST_F(FileStoreTest, SaysSoWhenTheFileIsRemovedOrReplaced) {
  const auto store = open();
  store->set("key", "value");
  std::filesystem::rename(path_, folder_.path() + "/elsewhere");
  EXPECT_TRUE(contains(message_of<StoreError>([&] { store->set("key", "other"); }), "removed"));
  EXPECT_TRUE(contains(message_of<StoreError>([&] { store->get("key"); }), "removed"));
  open()->set("key", "of another store");
  EXPECT_TRUE(contains(message_of<StoreError>([&] { store->get("key"); }), "replaced"));
}

// A file system may give the next file the number of the inode that was free again.
TEST_F(FileStoreTest, AFileThatIsMadeAfterTheRemovalIsAnother) {
  for (int round = 0; round < 5; ++round) {
    const auto store = open();
    store->set("key", "value");
    std::filesystem::remove(path_);
    EXPECT_THROW(store->clone(), StoreError);
    EXPECT_FALSE(std::filesystem::exists(path_)) << "a clone makes no file";
    const auto other = open();
    EXPECT_TRUE(contains(message_of<StoreError>([&] { store->get("key"); }), "replaced"));
    EXPECT_TRUE(contains(message_of<StoreError>([&] { store->set("key", "lost"); }), "replaced"));
    EXPECT_THROW(store->clone(), StoreError);
    EXPECT_EQ(other->num_keys(), 0);
    std::filesystem::remove(path_);
  }
}

TEST_F(FileStoreTest, AnOpenFileNeedsNoName) {
  UniqueFd file(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  auto store = std::make_shared<FileStore>(std::move(file));
  std::filesystem::remove(path_);
  store->set("key", "value");
  const std::shared_ptr<Store> clone = store->clone();
  store.reset();
  EXPECT_EQ(clone->get("key"), "value");
  clone->set("key", "another");
  EXPECT_EQ(clone->clone()->get("key"), "another");
}

TEST_F(FileStoreTest, ATornTailOfAnyLengthIsIgnoredAndCutOff) {
  open()->set("whole", "1");
  const std::size_t whole = read_file(path_).size();
  open()->set("torn", "a value of some length");
  const std::string bytes = read_file(path_);
  for (std::size_t cut = whole; cut < bytes.size(); ++cut) {
    write_file(path_, bytes.substr(0, cut));
    const auto reader = open();
    EXPECT_EQ(reader->get("whole"), "1");
    EXPECT_FALSE(reader->check(Keys{"torn"})) << cut;
    open()->set("next", std::to_string(cut));
    EXPECT_EQ(reader->get("next"), std::to_string(cut)) << "one that saw the torn record goes on";
    EXPECT_EQ(reader->num_keys(), 2);
  }
}

TEST_F(FileStoreTest, ATornHeaderIsWrittenAnew) {
  open()->set("key", "value");
  const std::string bytes = read_file(path_);
  for (std::size_t cut = 1; cut < 8; ++cut) {
    write_file(path_, bytes.substr(0, cut));
    EXPECT_EQ(open()->num_keys(), 0);
    open()->set("key", "value");
    EXPECT_EQ(read_file(path_), bytes);
  }
}

// Flips every bit of a file. A store may refuse the file or, where the flip makes the rest look like a torn record, not
// see the rest; it never shows a value that was not set.
TEST_F(FileStoreTest, ADamagedRecordNeverShowsAsData) {
  open()->set("first", "1");
  open()->set("second", "2");
  const std::string bytes = read_file(path_);
  int refused = 0;
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    write_file(path_, damaged);
    try {
      const auto store = open();
      EXPECT_LT(store->num_keys(), 2) << bit;
      if (store->check(Keys{"first"})) {
        EXPECT_EQ(store->get("first"), "1");
      }
      EXPECT_FALSE(store->check(Keys{"second"}));
    } catch (const StoreError&) {
      ++refused;
      EXPECT_EQ(read_file(path_), damaged);
    }
  }
  EXPECT_GT(refused, 100);
}

TEST_F(FileStoreTest, AWriterKilledInTheMiddleOfARecordHoldsNobodyUp) {
  const auto store = open();
  store->set("key", "before");
  for (int round = 0; round < 5; ++round) {
    const pid_t child = fork_child([&] {
      const UniqueFd fd(::open(path_.c_str(), O_RDWR | O_APPEND));
      lock_exclusively(fd.get());
      constexpr std::array<char, 14> kHalf{100, 0, 0, 0, 1, 2, 3, 4, 1, 4, 0, 0, 0, 'h'};
      if (::write(fd.get(), kHalf.data(), kHalf.size()) < 0) return 1;
      ::raise(SIGKILL);
      return 0;
    });
    ASSERT_EQ(wait_for(child), -SIGKILL);
    EXPECT_EQ(store->add("rounds", 1), round + 1);
    EXPECT_EQ(open()->get("rounds"), std::to_string(round + 1));
  }
  EXPECT_EQ(open()->get("key"), "before");
}

TEST_F(FileStoreTest, AStoppedLockHolderCostsATimeoutAndNoMore) {
  const auto store = open();
  store->set("key", "before");
  std::array<int, 2> ready{};
  ASSERT_EQ(::pipe(ready.data()), 0);
  const pid_t child = fork_child([&] {
    const UniqueFd fd(::open(path_.c_str(), O_RDWR));
    lock_exclusively(fd.get());
    if (::write(ready[1], "x", 1) != 1) return 1;
    for (;;) ::pause();
  });
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  store->set_timeout(Milliseconds(100));
  EXPECT_TRUE(contains(message_of<TimeoutError>([&] { store->set("key", "x"); }), "lock"));
  EXPECT_TRUE(contains(message_of<TimeoutError>([&] { store->clone(); }), "lock"));
  EXPECT_TRUE(contains(message_of<TimeoutError>([&] { FileStore(path_, -1, Milliseconds(100)); }), "lock"));
  ::kill(child, SIGKILL);
  EXPECT_EQ(wait_for(child), -SIGKILL);
  store->set("key", "after");
  EXPECT_EQ(open()->get("key"), "after");
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(FileStoreTest, AFullDiskIsAnErrorAndLosesNothingThatWasWritten) {
  const pid_t child = fork_child([&] {
    const rlimit limit{20'000, 20'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    ::signal(SIGXFSZ, SIG_IGN);
    const auto store = open();
    int written = 0;
    try {
      for (;; ++written) store->set("key " + std::to_string(written), std::string(1'500, 'v'));
    } catch (const StoreError&) {
    }
    return store->num_keys() == written ? written : 98;
  });
  const int written = wait_for(child);
  EXPECT_EQ(written, 13) << "whole records of some 1,520 bytes that fit 20,000";
  const auto store = open();
  EXPECT_EQ(store->num_keys(), written);
  store->set("more", "fits again");
  EXPECT_EQ(open()->num_keys(), written + 1);
}

// Children write as fast as they can and say after each write that it is done; each is killed at a random moment.
// Whatever was said to be done is there afterwards, in order, and the survivors never stop.
TEST_F(FileStoreTest, ProcessesKilledAtRandomMomentsLoseNothingThatWasDone) {
  constexpr int kChildren = 30;
  std::mt19937 random(7);
  const auto survivor = open();
  int torn = 0;
  for (int number = 0; number < kChildren; ++number) {
    const std::string queue = "child " + std::to_string(number);
    std::array<int, 2> done{};
    ASSERT_EQ(::pipe(done.data()), 0);
    const pid_t child = fork_child([&] {
      const auto store = open();
      for (int n = 0;; ++n) {
        // Every third record is large, so that many kills fall into a write.
        store->queue_push(queue, std::to_string(n) + std::string(n % 3 == 0 ? 200'000 : 3, '.'));
        if (::write(done[1], "x", 1) != 1) return 1;
      }
    });
    ::close(done[1]);
    char byte = 0;
    ASSERT_EQ(::read(done[0], &byte, 1), 1);  // it is under way
    const timespec pause{0, static_cast<long>(random() % 3'000'000)};
    ::ppoll(nullptr, 0, &pause, nullptr);
    ::kill(child, SIGKILL);
    ASSERT_EQ(wait_for(child), -SIGKILL);
    int finished = 1;
    while (::read(done[0], &byte, 1) == 1) ++finished;
    ::close(done[0]);

    const auto size = std::filesystem::file_size(path_);
    EXPECT_EQ(survivor->add("survivor", 1), number + 1);
    const auto record = 8 + 5 + std::string("survivor").size() + std::to_string(number + 1).size();
    if (std::filesystem::file_size(path_) != size + record) ++torn;  // the add cut a torn record off first
    const auto there = survivor->queue_length(queue);
    EXPECT_GE(there, finished);
    EXPECT_LE(there, finished + 1) << "at most one write was done and not yet said to be";
    for (int n = 0; n < there; ++n) {
      const std::string element = survivor->queue_pop(queue);
      EXPECT_EQ(element.substr(0, element.find('.')), std::to_string(n));
      EXPECT_EQ(element.size() - element.find('.'), n % 3 == 0 ? 200'000U : 3U);
    }
  }
  EXPECT_EQ(open()->num_keys(), 1) << "a new store reads all of the file";
  std::cout << kChildren << " kills, " << torn << " of them in the middle of a record\n";
}

}  // namespace
}  // namespace gradwire::file_store_test
