// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/hook_race_internal.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace gradwire::internal {
namespace {

constexpr StepTime kNone{std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
constexpr int kFirstWait = 4;       // windows after a race that changed nothing
constexpr int kLongestWait = 256;   // the wait grows up to here
constexpr int kCalm = 256;          // after so many calm windows half of the wait is enough
constexpr int kReference = 4;       // windows whose mean is the reference
constexpr std::size_t kDoubts = 3;  // a window and two steps that differ make the hooks race again
constexpr double kUsual = 4;        // so many times the usual distance differs
constexpr double kNoise = 2.5;      // so many times the usual distance of a step is no gain

bool is_time(const StepTime& time) {
  return std::isfinite(time.cost) && std::isfinite(time.step) && time.cost >= 0 && time.step >= 0;
}

// Of two values the lower one: what disturbs one step makes it longer.
double median(std::vector<double> values) {
  if (values.size() == 2) return std::min(values[0], values[1]);
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

// Reads numbers one after another. What is missing or out of range makes the reader invalid.
class Reader {
 public:
  explicit Reader(std::span<const double> numbers) : numbers_(numbers) {}
  double number() {
    valid_ = valid_ && at_ < numbers_.size();
    return valid_ ? numbers_[at_++] : 0;
  }
  // A whole number from `low` to `high`.
  int whole(int low, int high) {
    const double value = number();
    valid_ = valid_ && value >= low && value <= high && value == std::floor(value);
    return valid_ ? static_cast<int>(value) : low;
  }
  double share() {
    const double value = number();
    valid_ = valid_ && value >= 0 && value <= 1;
    return value;
  }
  StepTime time() {
    const double cost = number();
    const StepTime time{cost, number()};
    valid_ = valid_ && is_time(time);
    return time;
  }
  bool valid() const noexcept { return valid_; }
  bool ended() const noexcept { return at_ == numbers_.size(); }

 private:
  std::span<const double> numbers_;
  std::size_t at_ = 0;
  bool valid_ = true;
};

constexpr int kMany = 1 << 20;

}  // namespace

StepTime median_of(std::vector<StepTime> times) {
  if (times.empty()) return kNone;
  std::vector<double> costs, steps;
  for (const StepTime& time : times) {
    costs.push_back(time.cost);
    steps.push_back(time.step);
  }
  return {median(std::move(costs)), median(std::move(steps))};
}

HookRace::HookRace(std::size_t hooks, const RaceRules& rules)
    : rules_(rules), samples_(hooks), dropped_(hooks, 0), tolerance_(rules.change) {
  if (hooks == 1) {
    phase_ = Phase::settled;
  } else if (rules_.unused == 0) {
    start_round(Phase::first, current_then_others());
  }
}

bool HookRace::begin_step() noexcept {
  if (samples_.size() == 1) return false;
  if (!settled()) return true;
  if (++in_window_ < (doubts_.empty() ? rules_.window : 1)) return false;
  in_window_ = 0;
  return true;
}

void HookRace::add(std::size_t hook, const StepTime& time) {
  if (samples_.size() == 1) return;
  if (is_late(hook)) return take_late(hook, time);
  if (hook != current_ || !is_time(time)) return;
  switch (phase_) {
    case Phase::unused:
      if (++steps_ >= rules_.unused) start_round(Phase::first, current_then_others());
      return;
    case Phase::first:
    case Phase::second:
    case Phase::again:
    case Phase::closing:
      return take(time);
    case Phase::settled:
      return watch(time);
  }
}

void HookRace::drop_current() {
  dropped_[current_] = 1;
  samples_[current_].clear();
  next_turn();
}

void HookRace::race_again() {
  if (samples_.size() == 1) return;
  if (!settled()) {
    *this = HookRace(samples_.size(), rules_);
    return;
  }
  samples_.assign(samples_.size(), {});
  start_round(Phase::again, current_then_others());
}

StepTime HookRace::measured(std::size_t hook) const { return median_of(samples_[hook]); }

// The last time of a turn is known in the first step of the next turn. The last hook of a round waits for this time.
int HookRace::turn_length() const noexcept {
  const int late = at_ + 1 < order_.size() ? 1 : 0;
  if (phase_ == Phase::first) return rules_.first_turn - late;
  if (phase_ == Phase::second) return rules_.second_turn - late;
  return phase_ == Phase::closing ? 1 : rules_.short_turn - late;
}

bool HookRace::is_late(std::size_t hook) const {
  return races() && steps_ == -1 && at_ > 0 && hook == order_[at_ - 1] && dropped_[hook] == 0;
}

// Of a step of a hook from the median of this hook, as a share of the best step. Unknown: 0.
double HookRace::usual_distance() const {
  std::vector<double> distances;
  for (const auto& samples : samples_) {
    if (samples.size() < 3) continue;
    const double middle = median_of(samples).cost;
    for (const StepTime& time : samples) distances.push_back(std::abs(time.cost - middle));
  }
  const double step = best().step;
  return distances.empty() || step <= 0 ? 0 : median(std::move(distances)) / step;
}

StepTime HookRace::best() const {
  StepTime least = kNone;
  for (const auto& samples : samples_) {
    const StepTime time = median_of(samples);
    if (time.cost < least.cost) least = time;
  }
  return least;
}

bool HookRace::is_far(const StepTime& time) const {
  const StepTime least = best();
  return std::isfinite(least.cost) && time.cost - least.cost > rules_.far * least.step;
}

std::vector<std::size_t> HookRace::others() const {
  std::vector<std::size_t> found;
  for (std::size_t hook = 0; hook < samples_.size(); ++hook) {
    if (hook != current_ && dropped_[hook] == 0) found.push_back(hook);
  }
  return found;
}

// The current hook comes first, so that the others can be compared with it at once.
std::vector<std::size_t> HookRace::current_then_others() const {
  std::vector<std::size_t> order = others();
  order.insert(order.begin(), current_);
  return order;
}

void HookRace::start_round(Phase phase, std::vector<std::size_t> order) {
  phase_ = phase;
  order_ = std::move(order);
  at_ = 0;
  current_ = order_.front();
  steps_ = -1;
}

void HookRace::take(const StepTime& time) {
  const bool far = is_far(time);
  const bool counts = steps_ >= 0;
  ++steps_;
  // A hook that is far behind already in the step that does not count needs no more steps, but a time to report.
  if (counts || (far && samples_[current_].empty())) samples_[current_].push_back(time);
  if (far || steps_ >= turn_length()) next_turn();
}

// A turn whose only time is lost, because the job was started anew from a checkpoint, begins again.
void HookRace::take_late(std::size_t hook, const StepTime& time) {
  if (is_time(time)) return samples_[hook].push_back(time);
  if (!samples_[hook].empty()) return;
  --at_;
  current_ = hook;
}

void HookRace::next_turn() {
  if (++at_ == order_.size()) return end_round();
  current_ = order_[at_];
  steps_ = -1;
}

void HookRace::end_round() {
  if (phase_ == Phase::second) return settle_on(winner());
  if (phase_ == Phase::again) {
    if (winner() == before_) return settle_on(before_);
    samples_[before_].clear();
    return start_round(Phase::closing, {before_});
  }
  if (phase_ == Phase::closing) return settle_on(winner());
  const StepTime least = best();
  std::vector<std::size_t> near;
  for (std::size_t hook = 0; hook < samples_.size(); ++hook) {
    if (measured(hook).cost - least.cost <= rules_.near * least.step) near.push_back(hook);
  }
  if (near.size() < 2) return settle_on(winner());
  std::stable_sort(near.begin(), near.end(),
                   [&](std::size_t a, std::size_t b) { return measured(a).cost < measured(b).cost; });
  near.resize(std::min(near.size(), static_cast<std::size_t>(rules_.second_round)));
  std::sort(near.begin(), near.end());
  start_round(Phase::second, std::move(near));
}

// The first hook whose cost is within the gain of the best.
std::size_t HookRace::winner() const {
  const StepTime least = best();
  const double gain = std::max(rules_.gain, kNoise * usual_distance());
  std::size_t hook = 0;
  while (measured(hook).cost - least.cost > gain * least.step) ++hook;
  return races_again() && hook > before_ && !saves_clearly(hook) ? before_ : hook;
}

bool HookRace::saves_clearly(std::size_t hook) const {
  const StepTime before = measured(before_), time = measured(hook);
  if (!std::isfinite(before.cost)) return true;
  return before.cost - time.cost > std::max(rules_.gain, rules_.clear_gain) * std::max(before.step, time.step);
}

void HookRace::settle_on(std::size_t hook) {
  if (races_again() && !saves_clearly(hook)) wait_ = std::clamp(4 * wait_, kFirstWait, kLongestWait);
  // Windows that differ from the race are a change in the midst of the race. The first steps of a job may differ
  // anyhow.
  reference_ = races_again() && is_time(measured(hook)) ? measured(hook) : StepTime{};
  current_ = before_ = hook;
  phase_ = Phase::settled;
  tolerance_ = std::max(tolerance_, rules_.change);
  in_window_ = quiet_ = calm_ = 0;
}

void HookRace::watch(const StepTime& window) {
  quiet_ = std::min(quiet_ + 1, kMany);
  if (!differs(window)) {
    if (doubts_.empty()) return learn(window);
    tolerance_ = std::min(1.25 * tolerance_, rules_.most_change);
    return doubts_.clear();
  }
  if (quiet_ < wait_ || others().empty()) return;
  doubts_.push_back(window);
  if (doubts_.size() < kDoubts) return;
  // The steps in doubt are the turn of the current hook.
  samples_.assign(samples_.size(), {});
  samples_[current_].assign(doubts_.begin() + 1, doubts_.end());
  doubts_.clear();
  start_round(Phase::again, others());
}

void HookRace::learn(const StepTime& window) {
  if (reference_.step > 0) {
    tolerance_ += (kUsual * std::abs(distance(window)) - tolerance_) / 8;
    tolerance_ = std::clamp(tolerance_, rules_.least_change, rules_.most_change);
  }
  if (calm_ < kReference) {
    reference_.cost += (window.cost - reference_.cost) / (1 + calm_);
    reference_.step += (window.step - reference_.step) / (1 + calm_);
  }
  calm_ = std::min(calm_ + 1, kMany);
  if (calm_ % kCalm == 0) wait_ /= 2;
}

// From the reference, as a share of a step; negative: faster.
double HookRace::distance(const StepTime& time) const {
  return (time.cost - reference_.cost) / std::max(reference_.step, time.step);
}

// All steps in doubt differ in the same direction.
bool HookRace::differs(const StepTime& time) const {
  if (reference_.step == 0) return false;
  const double by = distance(time);
  const bool turned = !doubts_.empty() && (distance(doubts_.front()) > 0) != (by > 0);
  return std::abs(by) > tolerance_ && !turned;
}

std::vector<double> HookRace::save() const {
  std::vector<double> numbers{static_cast<double>(samples_.size()),
                              static_cast<double>(phase_),
                              static_cast<double>(current_),
                              static_cast<double>(before_),
                              static_cast<double>(at_),
                              static_cast<double>(steps_),
                              static_cast<double>(in_window_),
                              static_cast<double>(quiet_),
                              static_cast<double>(wait_),
                              static_cast<double>(calm_),
                              reference_.cost,
                              reference_.step,
                              tolerance_,
                              static_cast<double>(order_.size())};
  for (const std::size_t hook : order_) numbers.push_back(static_cast<double>(hook));
  for (const char dropped : dropped_) numbers.push_back(dropped);
  const auto save_times = [&](const std::vector<StepTime>& times) {
    numbers.push_back(static_cast<double>(times.size()));
    for (const StepTime& time : times) numbers.insert(numbers.end(), {time.cost, time.step});
  };
  for (const auto& samples : samples_) save_times(samples);
  save_times(doubts_);
  return numbers;
}

bool HookRace::restore(std::span<const double> numbers) {
  Reader read(numbers);
  HookRace made(samples_.size(), rules_);
  const int hooks = static_cast<int>(samples_.size());
  read.whole(hooks, hooks);
  made.phase_ = static_cast<Phase>(read.whole(0, static_cast<int>(Phase::settled)));
  made.current_ = static_cast<std::size_t>(read.whole(0, hooks - 1));
  made.before_ = static_cast<std::size_t>(read.whole(0, hooks - 1));
  const int at = read.whole(0, hooks);
  made.at_ = static_cast<std::size_t>(at);
  made.steps_ = read.whole(-1, std::max(kMany, rules_.unused));
  made.in_window_ = read.whole(0, kMany);
  made.quiet_ = read.whole(0, kMany);
  made.wait_ = read.whole(0, kLongestWait);
  made.calm_ = read.whole(0, kMany);
  made.reference_ = read.time();
  made.tolerance_ = read.share();
  const int order = read.whole(made.races() ? at + 1 : 0, hooks);
  made.order_.clear();
  for (int i = 0; i < order; ++i) made.order_.push_back(static_cast<std::size_t>(read.whole(0, hooks - 1)));
  for (char& dropped : made.dropped_) dropped = static_cast<char>(read.whole(0, 1));
  const auto read_times = [&](std::vector<StepTime>& times, int most) {
    const int count = read.whole(0, most);
    for (int i = 0; i < count && read.valid(); ++i) times.push_back(read.time());
  };
  for (auto& samples : made.samples_) read_times(samples, kMany);
  read_times(made.doubts_, kDoubts - 1);
  if (!read.valid() || !read.ended()) return false;
  *this = std::move(made);
  return true;
}

}  // namespace gradwire::internal
