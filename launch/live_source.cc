// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/live_source.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/os_handles.h"
#include "gradwire/base/strings.h"

namespace gradwire::launch {
namespace {

using Clock = Deadline::Clock;
using Json = nlohmann::json;
using observe::RunSums;

// A byte that programs do not write, ASCII's record separator, and the name.
constexpr std::string_view kReportBegin = "\x1egradwire-run report ";

// A rank makes a new file when it begins, also in the place of an old one, so each look opens the file.
std::optional<RunSums> read_file(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) return std::nullopt;
  if (static_cast<std::size_t>(status.st_size) < observe::record_file_bytes()) return std::nullopt;
  try {
    const Mapping memory = Mapping::of_file(fd.get(), observe::record_file_bytes());
    return observe::read_run_sums({memory.data(), memory.bytes()});
  } catch (const ResourceError&) {
    return std::nullopt;  // there will be another look
  }
}

std::int64_t nanoseconds_of(Clock::time_point time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

// Unsigned, because a program may write any number.
std::int64_t sum_of(std::int64_t one, std::int64_t other) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(one) + static_cast<std::uint64_t>(other));
}

std::int64_t difference_of(std::int64_t one, std::int64_t other) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(one) - static_cast<std::uint64_t>(other));
}

// JSON has no number for a loss that is not finite, so that it is the text "nan", "inf" or "-inf".
Json json_of_loss(const std::optional<double>& loss) {
  if (!loss) return Json();
  if (std::isfinite(*loss)) return Json(*loss);
  if (std::isnan(*loss)) return Json("nan");
  return Json(*loss > 0 ? "inf" : "-inf");
}

// Throws Json::exception.
double loss_of(const Json& json) {
  if (!json.is_string()) return json.get<double>();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto& text = json.get_ref<const std::string&>();
  if (text == "inf") return kInfinity;
  return text == "-inf" ? -kInfinity : std::numeric_limits<double>::quiet_NaN();
}

// The sums of a report, with moments that are moved by `shift`. Throws Json::exception.
RunSums sums_of(const Json& json, std::int64_t shift) {
  const auto moment = [&](const char* name) {
    const std::int64_t value = json.at(name);
    return value == 0 ? 0 : sum_of(value, shift);
  };
  RunSums sums;
  sums.rank = json.at("rank");
  sums.world = json.at("world");
  sums.opened = json.at("opened");
  sums.phase = static_cast<observe::StepPhase>(std::clamp(json.at("phase").get<int>(), 0, 4));
  sums.phase_begin = moment("phase_begin");
  sums.begin = moment("begin");
  sums.end = moment("end");
  sums.totals = {.steps = json.at("steps"),
                 .whole = json.at("whole"),
                 .forward = json.at("forward"),
                 .backward = json.at("backward"),
                 .wait = json.at("wait"),
                 .rest = json.at("rest"),
                 .hook = json.at("hook"),
                 .split = {json.at("compute"), json.at("communication"), json.at("hook_wait")},
                 .sent = json.at("sent"),
                 .call_bytes = json.at("call_bytes")};
  if (const Json& loss = json.at("loss"); !loss.is_null()) sums.loss = loss_of(loss);
  return sums;
}

}  // namespace

void RecordFiles::follow(int first_rank, int count) {
  files_.clear();
  for (int rank = first_rank; rank < first_rank + count; ++rank) {
    files_.push_back({.path = concat(folder_, "/rank-", rank, ".record")});
    if (const auto sums = read_file(files_.back().path)) files_.back().opened_before = sums->opened;
  }
}

std::optional<LiveLook> RecordFiles::look(std::size_t index) {
  const File& file = files_.at(index);
  const auto sums = read_file(file.path);
  if (!sums || sums->opened == file.opened_before) return std::nullopt;
  return LiveLook{*sums, Clock::now()};
}

void HostReports::follow(int first_rank, int count) {
  first_rank_ = first_rank;
  ranks_.assign(static_cast<std::size_t>(count), {});
}

std::optional<LiveLook> HostReports::look(std::size_t index) { return ranks_.at(index).newest; }

std::optional<std::string_view> HostReports::take(std::string_view line) {
  const std::size_t begin = line.find(kReportBegin);
  if (begin == std::string_view::npos) return line;
  try {
    const Json json = Json::parse(line.substr(begin + kReportBegin.size()));
    const std::int64_t made = json.at("now");
    const std::int64_t shift = difference_of(nanoseconds_of(Clock::now()), made);
    const auto index = static_cast<std::size_t>(json.at("rank").get<int>() - first_rank_);
    RunSums sums = sums_of(json, index < ranks_.size() ? std::min(shift, ranks_[index].shift) : shift);
    if (index < ranks_.size()) {
      Rank& rank = ranks_[index];
      rank.shift = std::min(shift, rank.shift);
      rank.newest = LiveLook{std::move(sums), Clock::time_point(std::chrono::nanoseconds(sum_of(made, rank.shift)))};
    }
  } catch (const Json::exception&) {
    return line;  // a program's own
  }
  if (begin == 0) return std::nullopt;
  return line.substr(0, begin);
}

void NodeReports::follow(int first_rank, int count) {
  own_->follow(first_rank, own_ranks_);
  others_.follow(first_rank, count);
  told_.clear();
}

void NodeReports::refresh() {
  own_->refresh();
  std::vector<std::string> told = ask_();
  told_.resize(told.size());
  for (std::size_t node = 0; node < told.size(); ++node) {
    if (told[node] == told_[node]) continue;  // an old report would look like ranks that stand still since now
    told_[node] = std::move(told[node]);
    for (std::string_view rest = told_[node]; !rest.empty();) {
      const std::size_t end = std::min(rest.find('\n'), rest.size() - 1);
      others_.take(rest.substr(0, end));
      rest.remove_prefix(end + 1);
    }
  }
}

std::optional<LiveLook> NodeReports::look(std::size_t index) {
  return index < static_cast<std::size_t>(own_ranks_) ? own_->look(index) : others_.look(index);
}

std::string report_line(int rank, const RunSums& sums, std::int64_t now) {
  const observe::StepTotals& totals = sums.totals;
  const Json json = {{"rank", rank},
                     {"world", sums.world},
                     {"now", now},
                     {"opened", sums.opened},
                     {"phase", static_cast<int>(sums.phase)},
                     {"phase_begin", sums.phase_begin},
                     {"begin", sums.begin},
                     {"end", sums.end},
                     {"steps", totals.steps},
                     {"whole", totals.whole},
                     {"forward", totals.forward},
                     {"backward", totals.backward},
                     {"wait", totals.wait},
                     {"rest", totals.rest},
                     {"hook", totals.hook},
                     {"compute", totals.split.compute},
                     {"communication", totals.split.communication},
                     {"hook_wait", totals.split.hook},
                     {"sent", totals.sent},
                     {"call_bytes", totals.call_bytes},
                     {"loss", json_of_loss(sums.loss)}};
  return concat(kReportBegin, json.dump(), "\n");
}

}  // namespace gradwire::launch
