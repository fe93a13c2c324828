// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// DiLoCo against a serial program that plays all workers, with PyTorch's SGD as its outer optimizer.
#include "gradwire/optim/diloco.h"

#include <cmath>
#include <latch>
#include <sstream>

#include "gradwire/base/error.h"
#include "gradwire/optim/optim_test_support.h"
#include "gradwire/optim/post_local_sgd_optimizer.h"

namespace gradwire::testing::diloco_test {
namespace {

std::vector<at::Tensor> weights() {
  std::vector<at::Tensor> all{random_tensor({9, 7}, 1).t(), random_tensor({31}, 2), random_tensor({8, 5}, 3),
                              random_tensor({11}, 4).to(at::kDouble), random_tensor({3, 3}, 5)};
  for (at::Tensor& one : all) one.requires_grad_();
  return all;
}

// The fragments of weights(), written down by hand: 63, 31, 40, 11, 9 elements.
std::int64_t fragment_of(std::size_t parameter, std::int64_t fragments) {
  if (fragments == 1) return 0;
  const std::int64_t of_three[] = {0, 1, 2, 2, 2};
  EXPECT_EQ(fragments, 3);
  return of_three[parameter];
}

// All workers in one thread, as the papers' pseudo code has them.
class Reference {
 public:
  Reference(int world, DilocoOptions options) : options_(std::move(options)) {
    for (int worker = 0; worker < world; ++worker) own_.push_back(values_of(weights()));
    outer_ = values_of(weights());
    for (at::Tensor& one : outer_) one.requires_grad_();
    if (options_.outer != nullptr) {
      for (const at::Tensor& one : outer_) optimizers_.push_back(plain_optimizer(options_.outer, {one}));
    } else {
      for (const at::Tensor& one : outer_) {
        optimizers_.push_back(std::make_unique<torch::optim::SGD>(
            std::vector<at::Tensor>{one}, torch::optim::SGDOptions(0.7).momentum(0.9).nesterov(true)));
      }
    }
    sent_.resize(outer_.size());
  }

  void step() {
    ++count_;
    for (std::size_t worker = 0; worker < own_.size(); ++worker)
      move(own_[worker], static_cast<int>(worker), count_ - 1);
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < outer_.size(); ++i) {
      if (options_.overlap > 0 && is_turn(i, count_ - options_.overlap)) arrive(i);
      if (is_turn(i, count_)) {
        at::Tensor sum;
        for (const auto& own : own_) {
          const at::Tensor part = (outer_[i] - own[i]) / static_cast<double>(own_.size());
          sum = sum.defined() ? sum + part : part;
        }
        sent_[i] = sum;
        if (options_.overlap == 0) arrive(i);
      }
    }
  }
  // Ends the exchange that began after `count` steps.
  void finish(std::int64_t count) {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < outer_.size(); ++i) {
      if (is_turn(i, count)) arrive(i);
    }
  }
  const std::vector<at::Tensor>& own(int worker) const { return own_[static_cast<std::size_t>(worker)]; }
  const std::vector<at::Tensor>& outer() const { return outer_; }

 private:
  bool is_turn(std::size_t i, std::int64_t count) const {
    const std::int64_t turn = (fragment_of(i, options_.fragments) + 1) * options_.inner_steps / options_.fragments;
    return count > 0 && count % options_.inner_steps == turn % options_.inner_steps;
  }
  void arrive(std::size_t i) {
    outer_[i].mutable_grad() = sent_[i];
    optimizers_[i]->step();
    for (auto& own : own_) {
      if (options_.mixing == 0) {
        own[i].copy_(outer_[i]);
      } else {
        own[i].mul_(options_.mixing).add_(outer_[i], 1 - options_.mixing);
      }
    }
  }

  const DilocoOptions options_;
  std::int64_t count_ = 0;
  std::vector<std::vector<at::Tensor>> own_;
  std::vector<at::Tensor> outer_;
  std::vector<at::Tensor> sent_;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers_;
};

std::vector<DilocoOptions> schedules() {
  return {{.inner_steps = 1},
          {.inner_steps = 4},
          {.inner_steps = 6, .fragments = 3},
          {.inner_steps = 5, .overlap = 3},
          {.inner_steps = 7, .fragments = 3, .overlap = 6, .mixing = 0.5},
          {.inner_steps = 3, .fragments = 3, .mixing = 0.25, .outer = adam_factory()}};
}

std::string name_of(const DilocoOptions& options) {
  return concat("H = ", options.inner_steps, ", fragments ", options.fragments, ", overlap ", options.overlap,
                ", mixing ", options.mixing);
}

TEST(Diloco, HasTheBitsOfTheSerialProgram) {
  for (const std::string backend : {"threads", "shm"}) {
    for (const int world : {1, 2, 3}) {
      for (const DilocoOptions& schedule : schedules()) {
        Reference expected(world, schedule);
        std::vector<std::vector<std::vector<at::Tensor>>> own(20);  // by step and worker
        std::vector<std::vector<at::Tensor>> outer;
        for (auto& at_step : own) {
          expected.step();
          for (int worker = 0; worker < world; ++worker) at_step.push_back(values_of(expected.own(worker)));
          outer.push_back(values_of(expected.outer()));
        }
        run_ranks({backend}, world, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
          DilocoOptions options = schedule;
          options.process_group = group;
          const auto parameters = weights();
          if (rank != 0) move(parameters, rank, 77);  // all begin as rank 0 does
          DilocoAverager diloco(parameters, options);
          for (std::size_t step = 0; step < own.size(); ++step) {
            EXPECT_EQ(diloco.step(), static_cast<std::int64_t>(step));
            move(parameters, rank, static_cast<std::int64_t>(step));
            diloco.average_parameters(parameters);
            const std::string where =
                concat(backend, ", rank ", rank, " of ", world, ", ", name_of(options), ", step ", step);
            expect_same_bits(values_of(parameters), own[step][static_cast<std::size_t>(rank)], where);
            expect_same_bits(values_of(diloco.outer_parameters()), outer[step], concat(where, ", outer"));
          }
        });
      }
    }
  }
}

// At the end of training the last exchange takes effect although its overlap has not passed.
TEST(Diloco, TheLastExchangeIsFinishedAtTheEnd) {
  const DilocoOptions schedule{.inner_steps = 6, .fragments = 3, .overlap = 3, .mixing = 0.5};
  Reference expected(2, schedule);
  for (int step = 0; step < 12; ++step)
    expected.step();  // the exchanges that began after 10 and 12 steps are under way
  expected.finish(10);
  expected.finish(12);
  run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    DilocoOptions options = schedule;
    options.process_group = group;
    const auto parameters = weights();
    DilocoAverager diloco(parameters, options);
    for (int step = 0; step < 12; ++step) {
      move(parameters, rank, step);
      diloco.average_parameters(parameters);
    }
    diloco.finish_exchanges();
    expect_same_bits(values_of(diloco.outer_parameters()), values_of(expected.outer()), "outer");
    expect_same_bits(values_of(parameters), values_of(expected.own(rank)), "own");
    diloco.finish_exchanges();  // there is none
    expect_same_bits(values_of(diloco.outer_parameters()), values_of(expected.outer()), "outer again");
  });
}

// Over a user's group, which cannot be duplicated, too.
TEST(Diloco, OneStepWithAPlainOuterOptimizerIsTheAverageOfTheModels) {
  for (const std::string backend : {"local", "threads"}) {
    run_ranks({backend}, 3, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
      const auto parameters = weights();
      DilocoAverager diloco(parameters, {.process_group = group,
                                         .inner_steps = 1,
                                         .outer = optimizer_factory<torch::optim::SGD>(torch::optim::SGDOptions(1))});
      std::vector<at::Tensor> sums;
      for (int worker = 0; worker < 3; ++worker) {
        const auto moved = weights();
        move(moved, worker, 0);
        for (std::size_t i = 0; i < moved.size(); ++i) {
          const at::Tensor value = moved[i].detach().to(at::kDouble);
          worker == 0 ? sums.push_back(value) : void(sums[i] = sums[i] + value);
        }
      }
      move(parameters, rank, 0);
      diloco.average_parameters(parameters);
      for (std::size_t i = 0; i < sums.size(); ++i)
        EXPECT_TRUE(at::allclose(parameters[i].detach().to(at::kDouble), sums[i] / 3, 0, 1e-6)) << i;
    });
  }
}

// A run that is saved in the midst of an exchange and loaded into new objects goes on with the same bits.
TEST(Diloco, GoesOnFromItsState) {
  for (const std::string hook :
       {"allreduce", "int8:memory=error_feedback", "power_sgd:rank=1,start=2", "random_k:ratio=0.3"}) {
    run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      const DilocoOptions options{
          .process_group = group, .inner_steps = 6, .fragments = 3, .overlap = 2, .mixing = 0.5, .hook = hook};
      const auto make = [&](const std::vector<at::Tensor>& parameters) {
        return PostLocalSGDOptimizer(
            std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1).momentum(0.9)),
            std::make_shared<DilocoAverager>(parameters, options));
      };
      const auto train = [&](torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& parameters, int first,
                             int end) {
        for (int step = first; step < end; ++step) {
          for (std::size_t i = 0; i < parameters.size(); ++i) {
            parameters[i].mutable_grad() =
                random_tensor(parameters[i].sizes(), 1000 * step + 10 * static_cast<int>(i) + rank)
                    .to(parameters[i].scalar_type());
          }
          optimizer.step();
        }
      };
      const auto parameters = weights();
      PostLocalSGDOptimizer first = make(parameters);
      train(first, parameters, 0, 13);  // one step into an exchange
      const std::string state = bytes_of(first);
      const auto at_13 = values_of(parameters);
      train(first, parameters, 13, 30);

      const auto again = weights();
      PostLocalSGDOptimizer second = make(again);
      train(second, again, 0, 3);  // something else, which loading replaces
      load_bytes(second, state);
      {
        const torch::NoGradGuard no_grad;
        for (std::size_t i = 0; i < again.size(); ++i) again[i].detach().copy_(at_13[i]);
      }
      EXPECT_EQ(second.averager().step(), 13);
      train(second, again, 13, 30);
      expect_same_bits(values_of(again), values_of(parameters), concat(hook, ", rank ", rank));
    });
  }
}

// A file of another schedule would go on at wrong steps, with averages of other fragments.
TEST(Diloco, AFileOfOtherOptionsIsRefused) {
  run_ranks({"threads"}, 2, [](int, const std::shared_ptr<ProcessGroup>& group) {
    const auto make = [&](const DilocoOptions& options) {
      auto averager = std::make_shared<DilocoAverager>(weights(), options);
      torch::serialize::OutputArchive out;
      averager->save(out);
      std::ostringstream bytes;
      out.save_to(bytes);
      return std::pair(averager, bytes.str());
    };
    const auto error_of_loading = [](DilocoAverager& averager, const std::string& bytes) {
      torch::serialize::InputArchive archive;
      archive.load_from(bytes.data(), bytes.size());
      return error_of([&] { averager.load(archive); });
    };
    const auto [first, saved] = make({.process_group = group, .inner_steps = 6, .fragments = 3});
    const auto [other, saved_by_other] = make({.process_group = group, .inner_steps = 6, .fragments = 2});
    EXPECT_EQ(error_of_loading(*first, saved), "");
    const std::string error = error_of_loading(*other, saved);
    EXPECT_NE(error.find("fragments = 3"), std::string::npos) << error;
    EXPECT_NE(error.find("fragments = 2"), std::string::npos) << error;
    const auto [close, saved_by_close] =
        make({.process_group = group, .inner_steps = 6, .fragments = 3, .mixing = 0.1234567});
    const auto [closest, saved_by_closest] =
        make({.process_group = group, .inner_steps = 6, .fragments = 3, .mixing = 0.1234574});
    EXPECT_NE(error_of_loading(*closest, saved_by_close).find("mixing = 0.1234567"), std::string::npos);
    const std::string of_optimizer = bytes_of(torch::optim::SGD(weights(), torch::optim::SGDOptions(1)));
    EXPECT_NE(error_of_loading(*first, of_optimizer).find("no DilocoAverager saved it"), std::string::npos);
  });
}

// The bytes of one all-reduce of the model a cycle, and of a codec's encoding where there is one.
TEST(Diloco, SendsTheModelOnceInACycle) {
  run_ranks({"threads"}, 3, [](int, const std::shared_ptr<ProcessGroup>& group) {
    const auto parameters = std::vector<at::Tensor>{random_tensor({3000}, 1).requires_grad_()};
    DilocoAverager diloco(parameters, {.process_group = group, .inner_steps = 5});
    const std::uint64_t before = diloco.payload_bytes();
    for (int step = 0; step < 14; ++step) diloco.average_parameters(parameters);
    EXPECT_EQ(diloco.payload_bytes() - before, 2U * (2 * 12'000 * 2 / 3));  // two cycles have ended
    DilocoAverager compressed(parameters, {.process_group = group, .inner_steps = 5, .hook = "int8"});
    const std::uint64_t plain = compressed.payload_bytes();
    for (int step = 0; step < 14; ++step) compressed.average_parameters(parameters);
    const std::uint64_t sent = compressed.payload_bytes() - plain;
    EXPECT_GT(sent, 2U * 4'000);
    EXPECT_LT(sent, 2U * 5'000);
  });
}

// What error feedback holds back is sent later: a difference too small for the codec arrives in the end.
TEST(Diloco, CompressedDifferencesArriveInTheEnd) {
  run_ranks({"threads"}, 2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto parameters = std::vector<at::Tensor>{at::zeros({512}).requires_grad_()};
    DilocoAverager diloco(parameters, {.process_group = group,
                                       .inner_steps = 2,
                                       .hook = "int4:memory=error_feedback",
                                       .outer = optimizer_factory<torch::optim::SGD>(torch::optim::SGDOptions(1))});
    for (int step = 0; step < 400; ++step) {
      {
        const torch::NoGradGuard no_grad;
        at::Tensor value = parameters[0].detach();
        value[0] += rank == 0 ? 1.0 : -1.0;  // large, and without an average
        value.narrow(0, 1, 511).add_(1e-3 * (rank + 1));
      }
      diloco.average_parameters(parameters);
      expect_replicas(*group, {diloco.outer_parameters()[0]}, "outer");
    }
    // 400 steps of 0.0015 on average; at most a few cycles' worth is still held back.
    const at::Tensor small = diloco.outer_parameters()[0].narrow(0, 1, 511);
    EXPECT_NEAR(small.mean().item<double>(), 0.6, 0.15);
  });
}

TEST(DilocoErrors, WhatCannotWorkIsRefused) {
  run_ranks({"threads"}, 2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto refusal = [&](std::vector<at::Tensor> parameters, DilocoOptions options) {
      options.process_group = group;
      return error_of([&] { DilocoAverager diloco(std::move(parameters), options); });
    };
    const auto expect_in = [](const std::string& error, const std::string& part) {
      EXPECT_NE(error.find(part), std::string::npos) << error;
    };
    expect_in(refusal({}, {}), "no parameters");
    expect_in(refusal({at::ones({2}, at::kLong)}, {}), "floating-point");
    expect_in(refusal(weights(), {.inner_steps = 0}), "inner_steps is 0");
    expect_in(refusal(weights(), {.inner_steps = 3, .fragments = 4}), "fragments is 4");
    expect_in(refusal(weights(), {.inner_steps = 3, .overlap = 3}), "overlap is 3");
    expect_in(refusal(weights(), {.mixing = 1}), "mixing is 1");
    expect_in(refusal(weights(), {.mixing = std::nan("")}), "mixing is");
    expect_in(refusal(weights(), {.hook = "int5"}), "int5");
    expect_in(refusal(weights(), {.inner_steps = 10 + rank}), "inner_steps of rank 0: 10, of rank 1: 11");
    auto other = weights();
    if (rank == 1) other[0] = random_tensor({2, 2}, 1).requires_grad_();
    expect_in(refusal(other, {}), "a hash of their sizes");

    const auto sgd = [](double lr) { return optimizer_factory<torch::optim::SGD>(torch::optim::SGDOptions(lr)); };
    const std::string rates = refusal(weights(), {.outer = sgd(0.5 + rank)});
    expect_in(rates, "the outer optimizer of rank 0: torch::optim::SGD (lr = 0.5, momentum = 0");
    expect_in(rates, "of rank 1: torch::optim::SGD (lr = 1.5, momentum = 0");
    const auto adam = optimizer_factory<torch::optim::Adam>(torch::optim::AdamOptions(0.5));
    expect_in(refusal(weights(), {.outer = rank == 0 ? adam : sgd(0.5)}), "of rank 0: torch::optim::Adam (");

    DilocoAverager diloco(weights(), {.process_group = group, .inner_steps = 2});
    expect_in(error_of([&] { diloco.average_parameters(weights()); }), "others at step 0");
    expect_in(error_of([&] { diloco.set_step(-1); }), "the step is -1");
  });
  run_ranks({"local"}, 2, [](int, const std::shared_ptr<ProcessGroup>& group) {
    const std::string error =
        error_of([&] { DilocoAverager diloco(weights(), {.process_group = group, .overlap = 1}); });
    EXPECT_NE(error.find("cannot be duplicated"), std::string::npos) << error;
  });
}

// Rank 1 fails in the midst of an exchange that rank 0 enters only when rank 1's averager is gone.
TEST(DilocoErrors, AnExceptionEndsTheExchangeUnderWay) {
  std::latch rank_1_is_gone(1);
  run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto parameters = weights();
    const auto train = [&](DilocoAverager& diloco, int steps) {
      for (int step = 0; step < steps; ++step) diloco.average_parameters(parameters);
    };
    const DilocoOptions options{.process_group = group, .inner_steps = 3, .overlap = 2};
    if (rank == 1) {
      try {
        DilocoAverager diloco(parameters, options);
        train(diloco, 3);
        throw std::runtime_error("no more data");
      } catch (const std::runtime_error&) {
        rank_1_is_gone.count_down();
      }
      return;
    }
    DilocoAverager diloco(parameters, options);
    train(diloco, 2);
    rank_1_is_gone.wait();
    const std::string error = error_of([&] { train(diloco, 3); });
    EXPECT_NE(error.find("destroyed by an exception"), std::string::npos) << error;
  });
}

// SGD that fails at its second step on rank 1.
class FailingSgd final : public torch::optim::SGD {
 public:
  FailingSgd(std::vector<torch::optim::OptimizerParamGroup> groups, int rank)
      : SGD(std::move(groups), torch::optim::SGDOptions(0.1)), rank_(rank) {}
  at::Tensor step(LossClosure closure = nullptr) override {
    if (rank_ == 1 && ++steps_ == 2) throw std::runtime_error("out of luck");
    return SGD::step(std::move(closure));
  }

 private:
  const int rank_;
  int steps_ = 0;
};

// The others do not wait for a rank whose outer or inner optimizer has failed, with and without a lane.
TEST(DilocoErrors, AnOptimizerThatFailsIsQuotedOnTheOthers) {
  for (const bool outer_fails : {true, false}) {
    for (const std::int64_t overlap : {0, 1}) {
      run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
        const auto parameters = weights();
        DilocoOptions options{.process_group = group, .inner_steps = 3, .overlap = overlap};
        if (outer_fails) {
          options.outer = [rank](std::vector<torch::optim::OptimizerParamGroup> groups) {
            return std::make_unique<FailingSgd>(std::move(groups), rank);
          };
        }
        std::unique_ptr<torch::optim::Optimizer> inner = std::make_unique<FailingSgd>(
            std::vector<torch::optim::OptimizerParamGroup>{{parameters}}, outer_fails ? 0 : rank);
        PostLocalSGDOptimizer optimizer(std::move(inner), std::make_shared<DilocoAverager>(parameters, options));
        const std::string error = error_of([&] {
          for (int step = 0; step < 12; ++step) optimizer.step();
        });
        EXPECT_NE(error.find("out of luck"), std::string::npos) << error;
        // Kept until both ranks have failed, so that no destructor tells the other rank.
        error_of([&] { group->barrier()->wait(); });
      });
    }
  }
}

// A rank that is gone ends the exchange for the others, at the step that waits for it.
// As when a job was killed while its ranks saved, one after the other: their outer parameters would never be equal
// again.
TEST(DilocoErrors, RanksThatLoadedStatesOfDifferentExchangesAreFound) {
  for (const std::int64_t overlap : {0, 1}) {
    run_ranks({"threads"}, 2, [&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      const auto parameters = weights();
      const auto diloco = std::make_shared<DilocoAverager>(
          parameters, DilocoOptions{.process_group = group, .inner_steps = 2, .overlap = overlap});
      PostLocalSGDOptimizer optimizer(plain_optimizer(adam_factory(), parameters), diloco);
      const std::string at_the_beginning = bytes_of(optimizer);
      for (std::int64_t step = 0; step < 2 + overlap; ++step) optimizer.step();
      if (rank == 1) load_bytes(optimizer, at_the_beginning);
      const std::string error = error_of([&] {
        for (std::int64_t step = 0; step < 4; ++step) optimizer.step();
        diloco->finish_exchanges();
      });
      EXPECT_NE(error.find("iteration"), std::string::npos) << "overlap " << overlap << ", error: " << error;
      error_of([&] { group->barrier()->wait(); });  // kept until both ranks have failed
    });
  }
}

TEST(DilocoErrors, ARankThatLeavesIsNamed) {
  run_ranks({"threads"}, 2, [](int rank, const std::shared_ptr<ProcessGroup>& group) {
    const auto parameters = weights();
    auto diloco = std::make_unique<DilocoAverager>(
        parameters, DilocoOptions{.process_group = group, .inner_steps = 2, .overlap = 1});
    diloco->average_parameters(parameters);
    if (rank == 1) {
      diloco.reset();
      return;
    }
    diloco->average_parameters(parameters);
    const std::string error = error_of([&] { diloco->average_parameters(parameters); });
    EXPECT_NE(error.find("rank 1"), std::string::npos) << error;
  });
}

}  // namespace
}  // namespace gradwire::testing::diloco_test
