// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Checkpoints on a disk that has no room. The tests of the whole program (char_lm_test) resume from them.
#include "examples/char_lm/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "tests/support/ranks.h"

namespace char_lm::checkpoint_test {
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

class Checkpoints : public ::testing::Test {
 protected:
  Checkpoints() {
    options_.layers = 1;
    options_.width = 32;
    options_.heads = 2;
    options_.context = 8;
    options_.steps = 100;
  }

  void save(const std::string& file, std::int64_t step) {
    save_checkpoint(file, options_, vocabulary_, Progress{step, {}}, model_, optimizer_);
  }
  std::int64_t load(const std::string& file) {
    return load_checkpoint(file, options_, vocabulary_, model_, optimizer_).step;
  }
  std::string file() const { return folder_.path() + "/checkpoint"; }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder_.path()), {}));
  }

  const gradwire::test_support::TemporaryFolder folder_;
  Options options_;
  const Vocabulary vocabulary_{"abc"};
  CharTransformer model_{ModelSize{vocabulary_.size(), 1, 32, 2, 8}};
  torch::optim::SGD optimizer_{model_->parameters(), torch::optim::SGDOptions(0.1)};
};

TEST_F(Checkpoints, AFullDiskIsAnErrorAndLeavesWhatWasThereBefore) {
  save(file(), 3);
  for (const rlim_t bytes : {0, 1, 4096, 20000}) {
    const SmallDisk small(bytes);
    try {
      save(file(), 4);
      ADD_FAILURE() << "no error with room for " << bytes << " bytes";
    } catch (const std::runtime_error& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(file() + " could not be written: File too large"), std::string::npos) << text;
    }
    EXPECT_EQ(files(), 1U) << "nothing unfinished is left";
  }
  EXPECT_EQ(load(file()), 3);
}

TEST_F(Checkpoints, AFullDiskLeavesNothingWhereNothingWas) {
  const SmallDisk small(4096);
  EXPECT_THROW(save(file(), 4), std::runtime_error);
  EXPECT_EQ(files(), 0U);
}

TEST_F(Checkpoints, AFolderThatIsNotThereIsAnError) {
  EXPECT_THROW(save(folder_.path() + "/none/checkpoint", 4), std::runtime_error);
}

TEST_F(Checkpoints, TheNextOneTakesItsPlace) {
  save(file(), 3);
  save(file(), 4);
  EXPECT_EQ(load(file()), 4);
  EXPECT_EQ(files(), 1U);
}

}  // namespace
}  // namespace char_lm::checkpoint_test
