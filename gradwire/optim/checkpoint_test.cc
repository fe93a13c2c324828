// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A run that continues from a checkpoint is the uninterrupted run, and a checkpoint that does not fit is refused.
#include "gradwire/optim/checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/ddp/hook_state.h"
#include "gradwire/hooks/registry.h"
#include "gradwire/optim/file_sum_internal.h"
#include "gradwire/optim/optim_test_support.h"
#include "gradwire/optim/post_local_sgd_optimizer.h"
#include "gradwire/optim/zero_hook.h"
#include "gradwire/optim/zero_redundancy_optimizer.h"
#include "tests/support/on_hosts.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::testing::checkpoint_test {
namespace {

using test_support::TemporaryFolder;

// One rank's training run: module, DDP with a hook, optimizer.
struct Training {
  Training(const std::shared_ptr<ProcessGroup>& group, const std::string& hook, bool sharded, int width = 8,
           std::optional<MixedPrecision> precision = {})
      : Training(group, hook, Mlp(3, width, /*seed=*/1), sharded, std::move(precision)) {}
  Training(const std::shared_ptr<ProcessGroup>& group, const std::string& hook, Mlp module, bool sharded = false,
           std::optional<MixedPrecision> precision = {})
      : net(std::move(module)), ddp(net, options_with(group, std::move(precision))) {
    if (!hook.empty()) ddp.register_comm_hook(make_hook(hook));
    if (sharded) {
      ZeroOptions options;
      options.process_group = group;
      optimizer = std::make_unique<ZeroRedundancyOptimizer>(net->parameters(), adam_factory(), options);
    } else {
      optimizer = std::make_unique<torch::optim::Adam>(net->parameters(), torch::optim::AdamOptions(1e-2));
    }
  }
  // A step on data that depends on the step and the rank alone.
  void step(int number, int rank) {
    optimizer->zero_grad();
    ddp(random_tensor({4, 8}, 100 * number + rank)).pow(2).mean().backward();
    optimizer->step();
  }
  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& parameter : net->parameters()) copies.push_back(parameter.detach().clone());
    return copies;
  }

  static DdpOptions options_with(const std::shared_ptr<ProcessGroup>& group, std::optional<MixedPrecision> precision) {
    DdpOptions options = options_for({"threads"}, group);
    options.mixed_precision = std::move(precision);
    return options;
  }

  Mlp net;
  DistributedDataParallel<Mlp> ddp;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

class Checkpoints : public ::testing::Test {
 protected:
  std::string file() const { return folder_.path() + "/run"; }
  // What a restore of the file into a training on `world` ranks throws, by rank.
  std::vector<std::string> refusals(
      int world, const std::function<std::unique_ptr<Training>(const std::shared_ptr<ProcessGroup>& group)>& make) {
    std::vector<std::string> errors(static_cast<std::size_t>(world));
    run_ranks({"threads"}, world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      const auto training = make(group);
      const auto before = training->values();
      try {
        load_checkpoint(file(), training->ddp, *training->optimizer);
      } catch (const InvalidArgument& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
      expect_same_bits(training->values(), before, "a refused checkpoint changes nothing");
    });
    return errors;
  }
  void save(int world, const std::string& hook) {
    run_ranks({"threads"}, world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      Training training(group, hook, false);
      for (int step = 0; step < 3; ++step) training.step(step, rank);
      save_checkpoint(file(), training.ddp, *training.optimizer, {{"step", std::int64_t{3}}});
    });
  }

  const TemporaryFolder folder_;
};

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "in: '" << text << "'";
}

// The optimizer steps in the backward pass, by a hook around the other hook.
TEST_F(Checkpoints, AContinuedRunThatStepsInTheBackwardPassIsTheUninterruptedOne) {
  for (const std::string hook : {"allreduce", "int4:memory=ef21"}) {
    run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      const auto overlap = [&](Training& training) {
        ZeroOptions options;
        options.process_group = group;
        options.overlap_with_ddp = true;
        auto zero = std::make_shared<ZeroRedundancyOptimizer>(training.net->parameters(), adam_factory(), options);
        training.ddp.register_comm_hook(make_zero_hook(make_hook(hook), zero, training.ddp.core()));
        return zero;
      };
      const auto step = [&](Training& training, int number) {
        training.ddp.zero_grad();
        training.ddp(random_tensor({4, 8}, 100 * number + rank)).pow(2).mean().backward();
      };
      Training whole(group, "", false);
      const auto zero = overlap(whole);
      for (int number = 0; number < 5; ++number) step(whole, number);
      save_checkpoint(file(), whole.ddp, *zero);
      Training continued(group, "", false);
      const auto loaded = overlap(continued);
      load_checkpoint(file(), continued.ddp, *loaded);
      expect_same_bits(continued.values(), whole.values(), "restored");
      for (int number = 5; number < 8; ++number) {
        step(whole, number);
        step(continued, number);
        expect_same_bits(continued.values(), whole.values(), concat("hook '", hook, "', step ", number));
      }
    });
  }
}

TEST_F(Checkpoints, AContinuedRunIsTheUninterruptedOne) {
  for (const std::string hook : {"", "one_bit:warm_up=3", "power_sgd:rank=1,start=2,min_rate=1", "int4:memory=ef21"}) {
    for (const bool sharded : {false, true}) {
      std::vector<at::Tensor> whole;
      run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
        Training training(group, hook, sharded);
        for (int step = 0; step < 8; ++step) {
          if (step == 5) {
            save_checkpoint(file(), training.ddp, *training.optimizer,
                            {{"step", std::int64_t{step}}, {"names", std::vector<std::string>{"a", "b"}}});
          }
          training.step(step, rank);
        }
        if (rank == 0) whole = training.values();
      });
      run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
        Training training(group, hook, sharded);
        const CheckpointValues values = load_checkpoint(file(), training.ddp, *training.optimizer);
        EXPECT_EQ(values.at("names").to<std::vector<std::string>>(), (std::vector<std::string>{"a", "b"}));
        for (auto step = static_cast<int>(values.at("step").toInt()); step < 8; ++step) training.step(step, rank);
        expect_same_bits(training.values(), whole, concat("hook '", hook, "', sharded ", sharded, ", rank ", rank));
      });
    }
  }
}

// After the first iteration only rank 0 knows the order of the buckets, and after a restore no pass has used it yet.
TEST_F(Checkpoints, ARunMayBeSavedBeforeItsBucketsAreInTheirOrder) {
  const std::string hook = "int4:memory=ef21";
  run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Training whole(group, hook, false), continued(group, hook, false), once_more(group, hook, false);
    whole.step(0, rank);
    save_checkpoint(file(), whole.ddp, *whole.optimizer);
    EXPECT_EQ(whole.ddp.core().next_bucket_order().empty(), rank != 0);
    load_checkpoint(file(), continued.ddp, *continued.optimizer);
    save_checkpoint(file(), continued.ddp, *continued.optimizer);
    load_checkpoint(file(), once_more.ddp, *once_more.optimizer);
    for (int number = 1; number < 4; ++number) {
      for (Training* const each : {&whole, &continued, &once_more}) each->step(number, rank);
      expect_same_bits(continued.values(), whole.values(), concat("step ", number));
      expect_same_bits(once_more.values(), whole.values(), concat("saved again, step ", number));
    }
    EXPECT_EQ(once_more.ddp.core().next_bucket_order(), whole.ddp.core().bucket_order());
  });
}

// As a search for a learning rate does: each trial begins from the checkpoint, in objects that have trained.
TEST_F(Checkpoints, EachTrialFromOneCheckpointIsAFreshRun) {
  using Prepare = std::function<void(Training&, const std::shared_ptr<ProcessGroup>&)>;
  const std::vector<std::pair<std::string, Prepare>> kinds{
      {"Adam", [](Training&, const auto&) {}},
      {"SGD",
       [](Training& training, const auto&) {
         training.optimizer = std::make_unique<torch::optim::SGD>(training.net->parameters(),
                                                                  torch::optim::SGDOptions(0.1).momentum(0.9));
       }},
      {"PostLocalSGD", [](Training& training, const auto& group) {
         training.optimizer =
             std::make_unique<PostLocalSGDOptimizer>(plain_optimizer(adam_factory(), training.net->parameters()),
                                                     std::make_shared<PeriodicModelAverager>(2, 0, group));
       }}};
  for (const auto& kind : kinds) {
    run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      Training fresh(group, "", false);
      kind.second(fresh, group);
      Training training(group, "", false);
      kind.second(training, group);
      save_checkpoint(file(), training.ddp, *training.optimizer);
      for (int step = 0; step < 3; ++step) fresh.step(step, rank);
      for (int trial = 0; trial < 3; ++trial) {
        load_checkpoint(file(), training.ddp, *training.optimizer);
        for (int step = 0; step < 3; ++step) training.step(step, rank);
        expect_same_bits(training.values(), fresh.values(), concat(kind.first, ", trial ", trial));
      }
    });
  }
}

TEST_F(Checkpoints, AnotherNumberOfRanksGoesOn) {
  save(2, "one_bit:warm_up=1");
  for (const int world : {1, 3}) {
    std::vector<std::vector<at::Tensor>> ends(static_cast<std::size_t>(world));
    run_ranks({"threads"}, world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      Training training(group, "one_bit:warm_up=1", false);
      Checkpoint checkpoint(file(), *group);
      EXPECT_EQ(checkpoint.ranks(), 2);
      EXPECT_EQ(checkpoint.hook(), training.ddp.core().comm_hook()->identity());
      EXPECT_TRUE(checkpoint.has_local_state());
      checkpoint.restore(training.ddp.core(), *training.optimizer);
      training.step(3, rank);
      ends[static_cast<std::size_t>(rank)] = training.values();
    });
    for (const auto& end : ends) expect_same_bits(end, ends[0], "replicas stay equal");
  }
}

// What the hook of a rank remembers, by key.
HookState memory_of(Training& training) { return local_part(training.ddp.core().comm_hook()->state_dict()); }

// Two hosts of two ranks: the first ranks of the hosts alone remember something. On other ranks, or on as many of other
// hosts, all ranks together owe what the hosts owed.
TEST_F(Checkpoints, TheMemoriesOfHostsGoOnOnOtherRanks) {
  for (const std::string hook : {"int4", "int4:memory=ef21", "power_sgd:rank=1,start=2,min_rate=0"}) {
    std::vector<HookState> saved(4);
    run_ranks({"threads"}, 4, [&](int rank, const std::shared_ptr<ProcessGroup>& flat) {
      Training training(test_support::on_hosts(flat, "0011"), hook, false);
      for (int step = 0; step < 4; ++step) training.step(step, rank);
      save_checkpoint(file(), training.ddp, *training.optimizer);
      saved[static_cast<std::size_t>(rank)] = memory_of(training);
      flat->barrier()->wait();
    });
    ASSERT_FALSE(saved[0].empty()) << hook;
    const HookState owed = average_local({saved[0], saved[2]});
    const auto expect_restored = [&](int world, const std::string& hosts) {
      run_ranks({"threads"}, world, [&](int rank, const std::shared_ptr<ProcessGroup>& flat) {
        Training training(hosts.empty() ? flat : test_support::on_hosts(flat, hosts), hook, false);
        load_checkpoint(file(), training.ddp, *training.optimizer);
        const HookState now = memory_of(training);
        SCOPED_TRACE(concat(hook, ", ", world, " ranks, hosts ", hosts, ", rank ", rank));
        if (hosts == "0011") {
          EXPECT_EQ(now.size(), saved[static_cast<std::size_t>(rank)].size());
          for (const auto& [key, value] : now)
            expect_same_bits({value.toTensor()}, {saved[static_cast<std::size_t>(rank)].at(key).toTensor()}, key);
        } else {
          for (const auto& [key, value] : owed) {
            if (key.starts_with("local/estimate/")) {  // EF21 begins with the mean of all estimates
              EXPECT_FALSE(now.contains(key)) << key;
            } else {
              expect_same_bits({now.at(key).toTensor()}, {value.toTensor()}, key);
            }
          }
        }
        flat->barrier()->wait();
      });
    };
    expect_restored(4, "0011");
    expect_restored(4, "");
    expect_restored(4, "0122");
    expect_restored(3, "");
    expect_restored(2, "");
  }
}

TEST_F(Checkpoints, WhatDoesNotFitIsRefusedOnAllRanksAndChangesNothing) {
  save(2, "int4:memory=ef21");
  for (const auto& error : refusals(2, [](const auto& group) {
         return std::make_unique<Training>(group, "int4:memory=ef21", false, /*width=*/16);
       })) {
    expect_contains(error, file() +
                               " is of another model: the checkpoint has 'layer0.weight', Float [8, 8], where the "
                               "module has 'layer0.weight', Float [16, 16]");
  }
  for (const auto& error : refusals(2, [](const auto& group) {
         auto training = std::make_unique<Training>(group, "int4:memory=ef21", false);
         training->optimizer =
             std::make_unique<torch::optim::SGD>(training->net->parameters(), torch::optim::SGDOptions(0.1));
         return training;
       })) {
    expect_contains(error, "has the state of the optimizer torch::optim::Adam, not of torch::optim::SGD");
  }
  for (const auto& error :
       refusals(2, [](const auto& group) { return std::make_unique<Training>(group, "", false); })) {
    expect_contains(error, "was saved under the hook ");
    expect_contains(error, ", and this run has no hook; register the same hook");
  }
}

TEST_F(Checkpoints, ARefusalNamesTheHooksAsTheProgramDoes) {
  save(2, "int8");
  const auto other = [](const auto& group) {
    return std::make_unique<Training>(group, "power_sgd:rank=2,start=10", false);
  };
  for (const auto& error : refusals(2, other)) {
    expect_contains(error, "was saved under the hook int8");
    expect_contains(error, "this run has the hook power_sgd");
    EXPECT_EQ(error.find("between_hosts"), std::string::npos) << error;
  }
}

// The parameters of a fine-tuning: the first layer is frozen before the module is wrapped.
std::unique_ptr<Training> with_frozen_layer(const std::shared_ptr<ProcessGroup>& group, const std::string& hook) {
  Mlp net(3, 8, /*seed=*/2);
  for (at::Tensor& parameter : net->linears[0]->parameters()) parameter.set_requires_grad(false);
  return std::make_unique<Training>(group, hook, net);
}

// Without a hook, with memories by parameter, and with a state of all parameters together.
TEST_F(Checkpoints, ARunGoesOnWithOtherTrainedParameters) {
  for (const std::string hook :
       {"", "int4:memory=error_feedback", "int4:memory=ef21", "power_sgd:rank=1,start=2,min_rate=0"}) {
    std::vector<at::Tensor> saved;
    run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      Training training(group, hook, false);
      for (int step = 0; step < 4; ++step) training.step(step, rank);
      save_checkpoint(file(), training.ddp, *training.optimizer);
      if (rank == 0) saved = training.values();
    });
    // First fewer parameters than were saved, then more.
    log::set_level(log::Level::warn);
    ::testing::internal::CaptureStderr();
    run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      const auto training = with_frozen_layer(group, hook);
      load_checkpoint(file(), training->ddp, *training->optimizer);
      expect_same_bits(training->values(), saved, concat("hook '", hook, "', restored"));
      if (!hook.empty()) {
        for (const auto& [key, value] : training->ddp.core().comm_hook()->state_dict())
          EXPECT_FALSE(key.ends_with("/layer0.weight") || key.ends_with("/layer0.bias")) << hook << ": " << key;
      }
      for (int step = 0; step < 4; ++step) training->step(step, rank);
      expect_replicas(*group, training->values(), concat("hook '", hook, "', trained on"));
      EXPECT_TRUE(same_bits(training->values()[0], saved[0])) << "it is frozen";
      EXPECT_FALSE(same_bits(training->values()[2], saved[2])) << "it is trained";
      save_checkpoint(file(), training->ddp, *training->optimizer);
    });
    log::set_level(log::Level::off);
    const std::string lines = ::testing::internal::GetCapturedStderr();
    expect_contains(lines, file() +
                               " is of a run that trained other parameters, so the order of its buckets is not used; "
                               "this run does not train 'layer0.bias', 'layer0.weight'");
    if (!hook.empty())
      expect_contains(lines, "the hook's state of parameters that this run does not train is not used");
    run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      Training training(group, hook, false);
      load_checkpoint(file(), training.ddp, *training.optimizer);
      for (int step = 0; step < 4; ++step) training.step(step, rank);
      expect_replicas(*group, training.values(), concat("hook '", hook, "', thawed"));
    });
  }
}

TEST_F(Checkpoints, AnotherHookStartsNewWhereTheProgramSaysSo) {
  save(2, "int4:memory=ef21");
  run_ranks({"threads"}, 2, [&](int, const std::shared_ptr<ProcessGroup>& group) {
    Training training(group, "int8", false);
    const auto values = load_checkpoint(file(), training.ddp, *training.optimizer, OtherHook::start_new);
    EXPECT_EQ(values.at("step").toInt(), 3);
  });
}

TEST_F(Checkpoints, AMissingOrDamagedFileIsRefusedOnAllRanks) {
  const auto plain = [](const auto& group) { return std::make_unique<Training>(group, "", false); };
  for (const auto& error : refusals(2, plain)) expect_contains(error, file() + " does not exist");
  std::ofstream(file()) << "no archive";
  for (const auto& error : refusals(2, plain)) expect_contains(error, file() + " is no checkpoint of gradwire");
  save(2, "");
  std::filesystem::resize_file(file(), std::filesystem::file_size(file()) / 2);
  for (const auto& error : refusals(2, plain)) expect_contains(error, file() + " is no checkpoint of gradwire");
}

// Opening a folder succeeds, reading it does not.
TEST_F(Checkpoints, AFolderInPlaceOfAFileIsRefusedOnAllRanks) {
  const auto plain = [](const auto& group) { return std::make_unique<Training>(group, "", false); };
  std::filesystem::create_directory(file());
  for (const auto& error : refusals(2, plain)) expect_contains(error, file() + " could not be read");
}

// Zip readers, which libtorch's is, read changed bytes of a tensor without a word.
TEST_F(Checkpoints, AChangedByteIsNoticed) {
  const auto plain = [](const auto& group) { return std::make_unique<Training>(group, "", false); };
  save(1, "");
  std::string whole;
  {
    std::ifstream in(file(), std::ios::binary);
    whole.assign(std::istreambuf_iterator<char>(in), {});
  }
  const std::size_t line = whole.rfind("\ngradwire sum ");
  ASSERT_NE(line, std::string::npos);
  int changed = 0;
  for (std::size_t at = 0; at < line; at += whole.size() / 60) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 16);
    std::ofstream(file(), std::ios::binary) << damaged;
    EXPECT_NE(refusals(1, plain)[0], "") << "byte " << at;
    ++changed;
  }
  EXPECT_GE(changed, 50);
  std::ofstream(file(), std::ios::binary) << whole.substr(0, line);  // as an earlier version wrote it
  run_ranks({"threads"}, 1, [&](int, const std::shared_ptr<ProcessGroup>& group) {
    Training training(group, "", false);
    load_checkpoint(file(), training.ddp, *training.optimizer);
  });
}

TEST(FileSum, WhereOnePieceEndsMakesNoDifference) {
  const std::string bytes(1000, 'x');
  internal::FileSum whole;
  whole.add(bytes);
  for (const std::size_t piece : {1, 3, 8, 13, 999}) {
    internal::FileSum sum;
    for (std::size_t at = 0; at < bytes.size(); at += piece) sum.add(std::string_view(bytes).substr(at, piece));
    EXPECT_EQ(sum.value(), whole.value()) << "pieces of " << piece;
  }
  internal::FileSum shorter;
  shorter.add(std::string_view(bytes).substr(1));
  EXPECT_NE(shorter.value(), whole.value());
}

TEST_F(Checkpoints, AFileThatCannotBeWrittenIsAnErrorOnAllRanks) {
  std::atomic<int> refused{0};
  run_ranks({"threads"}, 2, [&](int, const std::shared_ptr<ProcessGroup>& group) {
    Training training(group, "", false);
    try {
      save_checkpoint(folder_.path() + "/none/run", training.ddp, *training.optimizer);
    } catch (const ResourceError& error) {
      expect_contains(error.what(), "/none/run could not be written: No such file or directory");
      ++refused;
    }
    training.step(0, 0);  // the group is still good
  });
  EXPECT_EQ(refused.load(), 2);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 0);
}

// What save_checkpoint() throws on each rank, as "kind: message". The group stays good.
std::vector<std::string> errors_of_save(int world, const std::optional<MixedPrecision>& precision,
                                        const std::function<void(int rank, Training& training)>& prepare,
                                        const std::string& file) {
  std::vector<std::string> errors(static_cast<std::size_t>(world));
  run_ranks({"threads"}, world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Training training(group, "", false, 8, precision);
    prepare(rank, training);
    try {
      save_checkpoint(file, training.ddp, *training.optimizer);
    } catch (const std::exception& error) {
      errors[static_cast<std::size_t>(rank)] = describe(error);
    }
    group->barrier()->wait();
  });
  return errors;
}

TEST_F(Checkpoints, UnderALowerPrecisionAllRanksThrowTheSame) {
  at::Tensor keeps_the_graph[3];
  const auto forward = [&](int rank, Training& training) {
    keeps_the_graph[rank] = training.ddp(random_tensor({4, 8}, rank)).sum();
  };
  const auto errors = errors_of_save(3, MixedPrecision{.param_dtype = at::kBFloat16}, forward, file());
  for (const auto& error : errors) {
    EXPECT_TRUE(error.starts_with("InvalidArgument: save_checkpoint(\"" + file() + "\") failed on rank 0: ")) << error;
    EXPECT_EQ(error, errors[0]);
  }
  EXPECT_FALSE(std::filesystem::exists(file()));
}

TEST_F(Checkpoints, AnErrorOfOneRanksHookIsThrownOnAllRanks) {
  class Fails final : public CommHook {
   public:
    explicit Fails(bool fails) : fails_(fails) {}
    Future run(GradBucket& bucket) override { return internal::as_future(bucket.buffer()); }
    HookState state_dict() const override {
      if (fails_) throw std::runtime_error("the state is gone");
      return {};
    }

   private:
    const bool fails_;
  };
  const auto hook = [](int rank, Training& training) {
    training.ddp.register_comm_hook(std::make_shared<Fails>(rank == 1));
  };
  for (const auto& error : errors_of_save(3, {}, hook, file()))
    EXPECT_EQ(error, "error: save_checkpoint(\"" + file() + "\") failed on rank 1: the state is gone");
}

}  // namespace
}  // namespace gradwire::testing::checkpoint_test
