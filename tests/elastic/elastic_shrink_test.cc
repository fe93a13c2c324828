// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Jobs that shrink from four members to one and grow to four again, by deaths and in good order, with hooks that keep
// memories: no memory is lost but that of the dead, none counts twice, and the model learns what an undisturbed job
// learns.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/loss.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <list>
#include <map>
#include <mutex>
#include <numeric>
#include <set>

#include "gradwire/base/error.h"
#include "gradwire/ddp/hook_state.h"
#include "gradwire/elastic/elastic.h"
#include "gradwire/elastic/elastic_test_support.h"
#include "gradwire/hooks/registry.h"
#include "gradwire/optim/zero_redundancy_optimizer.h"

namespace gradwire::elastic_shrink_test {
namespace {

using namespace gradwire::testing;

constexpr std::int64_t kSteps = 240;
constexpr std::int64_t kAlone = 60;  // about from this step on, one member of four is left

struct Config {
  std::string hook;   // empty: plain averages
  bool zero = false;  // Adam, whose state the members share out; else SGD
};

// Four members, of which three go in these steps and three new ones come when one is left. Nothing: nobody goes.
enum class Going { nobody, by_death, in_good_order, both };

// By parameter name, in float64 and as one row.
using Tensors = std::map<std::string, at::Tensor>;

void add_scaled(Tensors& sums, const Tensors& parts, double factor) {
  for (const auto& [name, part] : parts) {
    const auto [place, is_new] = sums.try_emplace(name, at::zeros_like(part));
    place->second = place->second.add(part, factor);  // copies of `sums` share the tensors
  }
}

double largest(const Tensors& tensors) {
  double value = 0;
  for (const auto& [name, tensor] : tensors) value = std::max(value, tensor.abs().max().item<double>());
  return value;
}

at::Tensor as_row(const at::Tensor& tensor) { return tensor.detach().to(at::kDouble).reshape({-1}).clone(); }

// What a member's hook owes: the residuals of error feedback, the errors of PowerSGD.
Tensors memory_of(const CommHook& hook) {
  Tensors memory;
  for (const auto& [key, value] : local_part(hook.state_dict()))
    memory[key.substr(key.rfind('/') + 1)] = as_row(value.toTensor());
  return memory;
}

// What all members do, for the sums at the end.
class Ledger {
 public:
  // Member `member` begins `at` with this memory, and computes these gradients.
  void begins(int member, const ElasticStep& at, Tensors memory, Tensors gradients) {
    const std::lock_guard lock(mutex_);
    attempts_[{at.step, at.epoch}][member] = {std::move(memory), std::move(gradients), {}, {}, false};
  }
  // The member has counted the step.
  void ends(int member, const ElasticStep& at, Tensors memory, Tensors delivered) {
    const std::lock_guard lock(mutex_);
    Entry& entry = attempts_[{at.step, at.epoch}].at(member);
    entry.memory_after = std::move(memory);
    entry.delivered = std::move(delivered);
    entry.counted = true;
  }
  void has_died(int member) {
    const std::lock_guard lock(mutex_);
    dead_.insert(member);
  }

  // Each step: what was delivered and what is owed afterwards are the gradients and what was owed before. Between two
  // steps: what is owed is the mean of what the members owe that are there after it or left in good order.
  void expect_nothing_lost_or_doubled() const {
    Tensors delivered, computed, lost;
    const Attempt* before = nullptr;
    double most_owed = 0;
    int changes = 0;
    for (std::int64_t step = 0; step < kSteps; ++step) {
      const Attempt& attempt = counted_attempt(step);
      const Tensors begun = mean(
          attempt, [](const auto&, const Entry&) { return true; }, &Entry::memory);
      if (before != nullptr) {
        const Tensors kept = mean(
            *before, [&](int member, const Entry& entry) { return entry.counted && stays(member, attempt); },
            &Entry::memory_after);
        Tensors difference = begun;
        add_scaled(difference, kept, -1);
        EXPECT_LE(largest(difference), 1e-6) << "what is owed changed between steps " << step - 1 << " and " << step;
        if (attempt.size() != before->size()) ++changes;
      }
      const Tensors gradients = mean(
          attempt, [](const auto&, const Entry&) { return true; }, &Entry::gradients);
      const Tensors given = delivered_in(attempt);
      add_scaled(computed, gradients, 1);
      add_scaled(delivered, given, 1);
      // The memories of those that did not count the step, and of those that die after it, are lost.
      Tensors owed = begun;
      add_scaled(owed, gradients, 1);
      add_scaled(owed, given, -1);
      most_owed = std::max(most_owed, largest(owed));
      const Attempt* const next = step + 1 < kSteps ? &counted_attempt(step + 1) : nullptr;
      const Tensors stay = mean(
          attempt,
          [&](int member, const Entry& entry) { return entry.counted && (next == nullptr || stays(member, *next)); },
          &Entry::memory_after);
      const bool somebody_lost = std::any_of(attempt.begin(), attempt.end(), [&](const auto& item) {
        return !item.second.counted || (next != nullptr && !stays(item.first, *next));
      });
      Tensors gap = owed;
      add_scaled(gap, stay, -1);
      if (somebody_lost) {
        add_scaled(lost, gap, 1);
      } else {
        EXPECT_LE(largest(gap), 1e-5) << "step " << step;
      }
      before = &attempt;
    }
    EXPECT_GE(most_owed, 1e-3) << "the memories are so small that a loss would not show";
    // The sum over the whole job.
    Tensors rest = computed;
    add_scaled(rest, delivered, -1);
    add_scaled(rest, lost, -1);
    add_scaled(rest,
               mean(
                   *before, [](const auto&, const Entry&) { return true; }, &Entry::memory_after),
               -1);
    EXPECT_LE(largest(rest), 1e-4) << "delivered + owed + lost with the dead is not what was computed";
    if (dead_.empty()) {
      EXPECT_LE(largest(lost), 0) << "nobody died, so nothing may be lost";
    }
    std::printf("%d changes of the size; largest sum of gradients %.3g, memory up to %.3g, lost with the dead %.3g\n",
                changes, largest(computed), most_owed, largest(lost));
  }

 private:
  struct Entry {
    Tensors memory, gradients, memory_after, delivered;
    bool counted = false;
  };
  using Attempt = std::map<int, Entry>;  // by member

  // The last attempt at a step that a member counted.
  const Attempt& counted_attempt(std::int64_t step) const {
    const Attempt* found = nullptr;
    for (const auto& [place, attempt] : attempts_) {
      if (place.first != step) continue;
      for (const auto& [member, entry] : attempt) found = entry.counted ? &attempt : found;
    }
    if (found == nullptr) throw std::runtime_error(concat("nobody counted step ", step));
    return *found;
  }
  // Whether what the member owed is in what `next` begins with: it takes part, or has left in good order.
  bool stays(int member, const Attempt& next) const { return next.contains(member) || !dead_.contains(member); }

  static Tensors delivered_in(const Attempt& attempt) {
    for (const auto& [member, entry] : attempt) {
      if (entry.counted) return entry.delivered;
    }
    return {};
  }
  template <class Counts>
  static Tensors mean(const Attempt& attempt, const Counts& counts, Tensors Entry::*what) {
    Tensors sum;
    int count = 0;
    for (const auto& [member, entry] : attempt) {
      // A member without a memory of a parameter owes nothing of it.
      for (const auto& [name, gradient] : entry.gradients) sum.try_emplace(name, at::zeros_like(gradient));
      if (!counts(member, entry)) continue;
      ++count;
      add_scaled(sum, entry.*what, 1);
    }
    for (auto& [name, tensor] : sum) tensor = tensor.div(std::max(count, 1));
    return sum;
  }

  mutable std::mutex mutex_;
  std::map<std::pair<std::int64_t, std::int64_t>, Attempt> attempts_;  // by step and epoch
  std::set<int> dead_;
};

// A task with noise in its targets, so that seeds end with different losses.
std::pair<at::Tensor, at::Tensor> samples_of(const ElasticStep& at, int seed) {
  const at::Tensor x =
      random_tensor({8, 8}, static_cast<int>(seed * 1'000'000 + at.step * 1000 + at.size * 100 + at.rank));
  const at::Tensor noise =
      random_tensor({8, 8}, static_cast<int>(seed * 1'000'003 + at.step * 1009 + at.size * 103 + at.rank));
  return {x, torch::sin(x * 3).roll(1, 1) + noise * 0.3};
}

double held_out_loss(Mlp& net) {
  const torch::NoGradGuard no_grad;
  const at::Tensor x = random_tensor({512, 8}, 77);
  return torch::mse_loss(net->forward(x), torch::sin(x * 3).roll(1, 1)).item<double>();
}

struct JobResult {
  double loss = 0;
  std::vector<int> sizes;
};

class ShrinkingJob {
 public:
  ShrinkingJob(Config config, Going going, int seed, Ledger* ledger = nullptr)
      : config_(std::move(config)), going_(going), seed_(seed), ledger_(ledger) {}

  JobResult run() {
    for (int member = 0; member < 4; ++member) start(member);
    if (going_ != Going::nobody) {
      while (!alone_ && !any_failed_) std::this_thread::yield();
      for (int member = 4; member < 7; ++member) start(member);
    }
    for (std::thread& thread : threads_) thread.join();
    JobResult result{.loss = 0, .sizes = sizes_of(job_.journal(), kSteps)};
    for (const auto& [loss, parameters] : ends_) {
      EXPECT_EQ(loss, ends_.front().first);
      expect_equal_bits(parameters, ends_.front().second, "a member against the first");
    }
    EXPECT_EQ(ends_.size(), 4U);
    if (!ends_.empty()) result.loss = ends_.front().first;
    return result;
  }

 private:
  void start(int member) {
    threads_.emplace_back([this, member] {
      const std::string error = error_of([&] { train(member); });
      EXPECT_EQ(error, "") << "member " << member;
      if (!error.empty()) any_failed_ = true;
    });
  }

  // What becomes of a member in a step.
  enum class Fate { stays, dies, leaves };
  Fate fate_of(int member, const ElasticStep& at) const {
    // One after the other: a member that leaves while another one dies takes its memory along.
    if (member > 2 || at.step < kAlone - 15 * (member + 1) || at.size != member + 2) return Fate::stays;
    if (going_ == Going::by_death) return Fate::dies;
    if (going_ == Going::in_good_order) return Fate::leaves;
    return going_ == Going::both ? (member == 1 ? Fate::leaves : Fate::dies) : Fate::stays;
  }

  void train(int member) {
    Elastic elastic(job_.options());
    DdpOptions options;
    options.process_group = elastic.group();
    Mlp net(2, 8, seed_);
    DistributedDataParallel ddp(net, options);
    std::shared_ptr<CommHook> hook;
    if (!config_.hook.empty()) ddp.register_comm_hook(hook = make_hook(config_.hook));
    const auto optimizer = make_optimizer(ddp.parameters(), elastic);
    elastic.add(ddp).add(*optimizer);
    bool leaves = false;
    try {
      const ElasticEnd end = elastic.run(kSteps, [&](const ElasticStep& at) {
        if (member == 3 && at.size == 1 && at.step >= kAlone) wait_for_the_others();
        if (leaves) job_.decided(membership::change_key(at.epoch));  // the wish has arrived
        const auto [x, target] = samples_of(at, seed_);
        if (ledger_ != nullptr) {
          const at::Tensor loss = torch::mse_loss(net->forward(x), target);
          ledger_->begins(member, at, memory_of(*hook), named(*net, torch::autograd::grad({loss}, net->parameters())));
        }
        optimizer->zero_grad();
        torch::mse_loss(ddp(x), target).backward();
        const Fate fate = fate_of(member, at);
        if (fate == Fate::dies) {
          if (ledger_ != nullptr) ledger_->has_died(member);
          throw Killed();
        }
        if (fate == Fate::leaves) {
          elastic.leave();
          leaves = true;
        }
        const Tensors delivered = ledger_ != nullptr ? named(*net, gradients_of(*net)) : Tensors();
        optimizer->step();
        if (ledger_ != nullptr) ledger_->ends(member, at, memory_of(*hook), delivered);
      });
      if (end != ElasticEnd::finished) return;
    } catch (const Killed&) {
      return;
    }
    std::vector<at::Tensor> parameters;
    for (const at::Tensor& parameter : net->parameters()) parameters.push_back(parameter.detach().clone());
    const std::lock_guard lock(mutex_);
    ends_.emplace_back(held_out_loss(net), std::move(parameters));
  }

  void wait_for_the_others() {
    alone_ = true;
    while (joined_members(job_.journal()) < 7 && !any_failed_) std::this_thread::yield();
  }

  std::unique_ptr<torch::optim::Optimizer> make_optimizer(std::vector<at::Tensor> parameters, Elastic& elastic) const {
    if (!config_.zero)
      return std::make_unique<torch::optim::SGD>(std::move(parameters), torch::optim::SGDOptions(0.2).momentum(0.9));
    return std::make_unique<ZeroRedundancyOptimizer>(std::move(parameters),
                                                     optimizer_factory<torch::optim::Adam>(adam_options()),
                                                     ZeroOptions{.process_group = elastic.group()});
  }

  static Tensors named(const torch::nn::Module& net, const std::vector<at::Tensor>& tensors) {
    Tensors by_name;
    std::size_t i = 0;
    for (const auto& item : net.named_parameters()) by_name[item.key()] = as_row(tensors[i++]);
    return by_name;
  }

  const Config config_;
  const Going going_;
  const int seed_;
  Ledger* const ledger_;
  ElasticJob job_{membership::RosterOptions{.min = 1, .max = 4, .first = 4}};
  std::atomic<bool> alone_{false};
  std::atomic<bool> any_failed_{false};
  std::list<std::thread> threads_;
  std::mutex mutex_;
  std::vector<std::pair<double, std::vector<at::Tensor>>> ends_;
};

void expect_shrunk_and_grown(const std::vector<int>& sizes) {
  EXPECT_EQ(sizes.front(), 4);
  EXPECT_EQ(*std::min_element(sizes.begin(), sizes.end()), 1);
  EXPECT_EQ(sizes.back(), 4) << "the new members came too late";
}

class ElasticLedgerTest : public ::testing::TestWithParam<std::tuple<std::string, Going>> {};
INSTANTIATE_TEST_SUITE_P(Hooks, ElasticLedgerTest,
                         ::testing::Combine(::testing::Values("int4:memory=error_feedback",
                                                              "top_k:ratio=0.1,memory=error_feedback",
                                                              "power_sgd:start=2,rank=1,min_rate=1"),
                                            ::testing::Values(Going::by_death, Going::in_good_order, Going::both)));

TEST_P(ElasticLedgerTest, NoMemoryIsLostButThatOfTheDeadAndNoneCountsTwice) {
  const auto& [hook, going] = GetParam();
  Ledger ledger;
  const JobResult result = ShrinkingJob({.hook = hook}, going, 1, &ledger).run();
  if (HasFailure()) return;
  expect_shrunk_and_grown(result.sizes);
  ledger.expect_nothing_lost_or_doubled();
}

// Losses of several seeds. The difference that shrinking and growing makes is compared with what seeds make.
class ElasticLossTest : public ::testing::TestWithParam<Config> {};
INSTANTIATE_TEST_SUITE_P(Hooks, ElasticLossTest,
                         ::testing::Values(Config{"int8:memory=ef21"}, Config{"int8:memory=error_feedback"},
                                           Config{"power_sgd:start=2,rank=1,min_rate=1"}, Config{"", true},
                                           Config{"int8:memory=ef21", true}));

TEST_P(ElasticLossTest, ShrinkingAndGrowingChangesTheLossNoMoreThanTheSeedDoes) {
  constexpr int kSeeds = 4;
  std::vector<double> undisturbed, disturbed;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    undisturbed.push_back(ShrinkingJob(GetParam(), Going::nobody, seed).run().loss);
    const JobResult result = ShrinkingJob(GetParam(), Going::both, seed).run();
    expect_shrunk_and_grown(result.sizes);
    disturbed.push_back(result.loss);
  }
  const auto mean = [](const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  };
  double squares = 0;
  for (const double loss : undisturbed) squares += (loss - mean(undisturbed)) * (loss - mean(undisturbed));
  const double noise = std::sqrt(squares / (kSeeds - 1));
  std::printf("%s%s: undisturbed %.5f, shrunk and grown %.5f, noise of seeds %.5f\n", GetParam().hook.c_str(),
              GetParam().zero ? " ZeRO-Adam" : "", mean(undisturbed), mean(disturbed), noise);
  EXPECT_GT(noise, 0);
  EXPECT_LE(std::abs(mean(disturbed) - mean(undisturbed)), 2 * noise);
}

}  // namespace
}  // namespace gradwire::elastic_shrink_test
