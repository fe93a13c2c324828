// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A file is replaced as a whole or not at all, also on a disk that has no room.
#include "gradwire/base/whole_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "gradwire/base/error.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::whole_file_test {
namespace {

// While one lives, no file of this process grows beyond some bytes.
class SmallDisk {
 public:
  explicit SmallDisk(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);  // so that write() fails, as it does on a full disk
  }
  ~SmallDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

class WholeFiles : public ::testing::Test {
 protected:
  static void write(const std::string& path, const std::string& text) {
    WholeFile file(path);
    file.write(text.data(), text.size());
    file.finish();
  }
  std::string path() const { return folder_.path() + "/file"; }
  std::string content() const {
    std::ifstream in(path());
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder_.path()), {}));
  }

  const test_support::TemporaryFolder folder_;
};

TEST_F(WholeFiles, AFullDiskIsAnErrorAndLeavesWhatWasThereBefore) {
  write(path(), "before");
  for (const rlim_t bytes : {0, 1, 4096}) {
    const SmallDisk small(bytes);
    try {
      write(path(), std::string(20000, 'x'));
      ADD_FAILURE() << "no error with room for " << bytes << " bytes";
    } catch (const ResourceError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(path() + " could not be written: File too large"), std::string::npos) << text;
    }
    EXPECT_EQ(files(), 1U) << "nothing unfinished is left";
  }
  EXPECT_EQ(content(), "before");
}

TEST_F(WholeFiles, AFullDiskLeavesNothingWhereNothingWas) {
  const SmallDisk small(4096);
  EXPECT_THROW(write(path(), std::string(20000, 'x')), ResourceError);
  EXPECT_EQ(files(), 0U);
}

TEST_F(WholeFiles, WithoutFinishNothingChanges) {
  write(path(), "before");
  WholeFile(path()).write("after", 5);
  EXPECT_EQ(content(), "before");
  EXPECT_EQ(files(), 1U);
}

TEST_F(WholeFiles, AFolderThatIsNotThereIsAnError) {
  EXPECT_THROW(write(folder_.path() + "/none/file", "x"), ResourceError);
}

TEST_F(WholeFiles, TheNextOneTakesItsPlace) {
  write(path(), "first");
  write(path(), "second");
  EXPECT_EQ(content(), "second");
  EXPECT_EQ(files(), 1U);
}

}  // namespace
}  // namespace gradwire::whole_file_test
