// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "bench/far_apart/jobs.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/network_hosts.h"
#include "gradwire/base/strings.h"

namespace gradwire::bench {
namespace {

using Words = std::vector<std::string>;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kFirstMeasuredStep = 10;
constexpr int kLookMilliseconds = 20;
// Signs of life between workers that meet every ten seconds need not come several times a second. A worker that is
// killed is noticed at once all the same, because its connections close.
constexpr const char* kHeartbeat = "GRADWIRE_HEARTBEAT_MS=10000";

// A process that writes to a file. The destructor kills it.
class Process {
 public:
  Process(Words command, std::string output) : output_(std::move(output)), pid_(::fork()) {
    if (pid_ < 0) throw std::runtime_error("cannot fork");
    if (pid_ == 0) become(command);
  }
  ~Process() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  bool has_ended() {
    int status = 0;
    if (pid_ > 0 && ::waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      failed_ = status != 0;
    }
    return pid_ < 0;
  }
  bool failed() const noexcept { return failed_; }
  std::string output() const {
    std::ostringstream text;
    text << std::ifstream(output_).rdbuf();
    return std::move(text).str();
  }

 private:
  [[noreturn]] void become(Words& command) const {
    const int file = ::open(output_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(file, STDOUT_FILENO);
    ::dup2(file, STDERR_FILENO);
    std::vector<char*> argv;
    for (std::string& word : command) argv.push_back(word.data());
    argv.push_back(nullptr);
    ::execvp(argv.front(), argv.data());
    ::_exit(127);
  }

  const std::string output_;
  pid_t pid_;
  bool failed_ = false;
};

// What a worker wrote last (worker.cc).
struct WorkerFile {
  pid_t pid = 0;
  std::int64_t step = 0;
  double computing = 0;
  double seconds = 0;
  double loss = 0;
};

std::vector<WorkerFile> worker_files(const std::string& folder) {
  constexpr std::string_view kPrefix = "worker-";
  std::vector<WorkerFile> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kPrefix) || name.ends_with(".new")) continue;
    WorkerFile file{.pid = std::stoi(name.substr(kPrefix.size()))};
    if (std::ifstream(entry.path()) >> file.step >> file.computing >> file.seconds >> file.loss) files.push_back(file);
  }
  return files;
}

// A job that runs.
class Job {
 public:
  Job(const JobOptions& options, const WorkerSettings& settings) : options_(options), random_(options.seed) {
    std::filesystem::create_directory(options.folder);
    if (!options.rate.empty()) {
      hosts_.emplace(options.workers);
      hosts_->shape(options.rate);
    }
    for (const auto& [name, value] : settings) worker_.push_back(concat(name, "=", value));
    start_launchers();
    next_kill_ = moment_in_period(0);
  }

  JobResult run() {
    while (!has_ended()) {
      ::poll(nullptr, 0, kLookMilliseconds);
      look();
    }
    return result();
  }

 private:
  void start_launchers() {
    const std::string run = options_.programs + "/gradwire-run";
    if (!hosts_)
      return start({run, "--elastic", concat("1:", options_.workers), "-n", std::to_string(options_.workers)});
    const std::string address = hosts_->address(0) + ":29400";
    for (int host = 0; host < options_.workers; ++host) {
      Words words = hosts_->enter(host);
      words.push_back(run);
      if (host == 0) {
        words.insert(words.end(), {"--elastic", concat("1:", options_.workers), "--rendezvous", address});
      } else {
        words.insert(words.end(), {"--join", address});
      }
      words.insert(words.end(), {"-n", "1"});
      start(std::move(words));
    }
  }
  void start(Words words) {
    words.insert(words.end(), {"--deaths-per-minute", "1000", "--env", kHeartbeat});
    words.push_back(options_.programs + "/far_apart_worker");
    words.insert(words.end(), worker_.begin(), worker_.end());
    launchers_.push_back(
        std::make_unique<Process>(std::move(words), concat(options_.folder, "/launcher-", launchers_.size())));
  }

  bool has_ended() {
    bool all = true;
    for (const auto& launcher : launchers_) {
      all = launcher->has_ended() && all;
      if (launcher->failed()) throw std::runtime_error(concat("a launcher failed: ", launcher->output()));
    }
    return all;
  }

  void look() {
    const auto files = worker_files(options_.folder);
    std::int64_t newest = 0;
    for (const WorkerFile& file : files) newest = std::max(newest, file.step);
    if (newest >= kFirstMeasuredStep && !began_) {
      began_ = Clock::now();
      sent_before_ = sent();
    }
    if (options_.kill_every > 0 && newest >= next_kill_) {
      kill_one(files, newest);
      next_kill_ = moment_in_period(newest / options_.kill_every + 1);
    }
  }
  void kill_one(const std::vector<WorkerFile>& files, std::int64_t newest) {
    std::vector<pid_t> alive;
    for (const WorkerFile& file : files) {
      // Not one that is about to end; a killed one has old news.
      if (file.step + options_.kill_every > newest && file.loss == 0 && ::kill(file.pid, 0) == 0)
        alive.push_back(file.pid);
    }
    if (alive.empty()) return;
    ::kill(alive[random_() % alive.size()], SIGKILL);
    ++kills_;
  }
  std::int64_t moment_in_period(std::int64_t period) {
    return period * options_.kill_every + static_cast<std::int64_t>(random_() % (options_.kill_every + 1));
  }
  double sent() const {
    double sum = 0;
    for (int host = 0; hosts_ && host < hosts_->count(); ++host) sum += static_cast<double>(hosts_->traffic(host).sent);
    return sum;
  }

  JobResult result() const {
    JobResult result{.kills = kills_};
    if (began_) result.seconds = std::chrono::duration<double>(Clock::now() - *began_).count();
    double computing = 0;
    double seconds = 0;
    std::int64_t steps = 0;
    for (const WorkerFile& file : worker_files(options_.folder)) {
      computing += file.computing;
      seconds += file.seconds;
      steps = std::max(steps, file.step);
      if (file.loss > 0) result.loss = file.loss;
    }
    if (result.loss == 0) throw std::runtime_error(concat("no worker has finished: ", launchers_[0]->output()));
    result.computing = computing / seconds;
    result.bytes_a_step =
        (sent() - sent_before_) / static_cast<double>(std::max<std::int64_t>(steps - kFirstMeasuredStep, 1));
    return result;
  }

  const JobOptions& options_;
  std::mt19937 random_;
  std::optional<NetworkHosts> hosts_;
  Words worker_;
  std::vector<std::unique_ptr<Process>> launchers_;
  std::int64_t next_kill_ = 0;
  int kills_ = 0;
  std::optional<Clock::time_point> began_;
  double sent_before_ = 0;
};

}  // namespace

JobResult run_job(const JobOptions& options, WorkerSettings settings) {
  settings["folder"] = options.folder;
  settings["workers"] = std::to_string(options.workers);
  return Job(options, settings).run();
}

}  // namespace gradwire::bench
