// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/launcher_fixture_internal.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "gradwire/base/strings.h"
#include "launch/rank_environment.h"

namespace gradwire::launch {
namespace {

using Clock = std::chrono::steady_clock;

// Tries `condition` again and again until it holds or the guard has passed.
template <class Condition>
bool eventually(std::chrono::seconds guard, Condition condition) {
  const auto end = Clock::now() + guard;
  while (!condition()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

// A child, so one thread: it may do as it likes. SIGINT may be ignored where a script started the tests in the
// background.
[[noreturn]] void become(std::vector<std::string> command, const std::string& in, const std::string& out,
                         const std::string& err) {
  for (const int signal : {SIGINT, SIGQUIT, SIGHUP}) ::signal(signal, SIG_DFL);
  ::dup2(::open(in.c_str(), O_RDONLY), STDIN_FILENO);
  ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_TRUNC, 0600), STDOUT_FILENO);
  ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_TRUNC, 0600), STDERR_FILENO);
  std::vector<char*> argv;
  for (auto& argument : command) argv.push_back(argument.data());
  argv.push_back(nullptr);
  ::execvp(argv[0], argv.data());
  ::_exit(127);
}

constexpr std::chrono::seconds kProgramGuard{60};

UniqueFd watch(pid_t pid) { return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

}  // namespace

BackgroundProgram::BackgroundProgram(std::string files, const std::vector<std::string>& command,
                                     const std::vector<std::string>& extra)
    : files_(std::move(files)), started_(Clock::now()) {
  for (const char* stream : {".out", ".err"}) std::filesystem::remove(files_ + stream);  // an earlier one's
  pid_ = ::fork();
  if (pid_ == 0) {
    for (const auto& entry : extra) ::putenv(const_cast<char*>(entry.c_str()));
    become(command, "/dev/null", files_ + ".out", files_ + ".err");
  }
  pidfd_ = watch(pid_);
}

BackgroundProgram::~BackgroundProgram() {
  if (!pidfd_) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

Result BackgroundProgram::finish() {
  if (!ends_within(kProgramGuard)) {
    ADD_FAILURE() << "it hangs: " << out() << err();
    ::kill(pid_, SIGKILL);
  }
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pidfd_ = UniqueFd();
  return {WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status), out(), err(),
          std::chrono::duration<double>(Clock::now() - started_).count()};
}

bool BackgroundProgram::ends_within(std::chrono::milliseconds time) const {
  pollfd ended{pidfd_.get(), POLLIN, 0};
  return ::poll(&ended, 1, static_cast<int>(time.count())) == 1;
}

void BackgroundProgram::wait_for(const std::string& text, int times) const {
  ASSERT_TRUE(eventually(kProgramGuard, [&] { return count_of(out() + err(), text) >= times; }))
      << "no '" << text << "' in: " << out() << err();
}

void BackgroundProgram::signal(int signal) const { ASSERT_EQ(::kill(pid_, signal), 0); }

void BackgroundProgram::kill_children() const {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string number = entry.path().filename();
    if (number.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string stat = read_file(entry.path() / "stat");
    const auto name_end = stat.rfind(") ");
    if (name_end == std::string::npos || std::stoi(stat.substr(name_end + 4)) != pid_) continue;
    ::kill(std::stoi(number), SIGKILL);
    ++count;
  }
  EXPECT_GT(count, 0);
}

std::string BackgroundProgram::out() const { return read_file(files_ + ".out"); }

std::string BackgroundProgram::err() const { return read_file(files_ + ".err"); }

BackgroundProgram LauncherTest::launch(const std::string& name, const std::vector<std::string>& arguments,
                                       const std::vector<std::string>& before) const {
  std::vector<std::string> command = before;
  command.emplace_back(GRADWIRE_RUN_PROGRAM);
  command.insert(command.end(), arguments.begin(), arguments.end());
  return {scratch(name), command, {"TMPDIR=" + scratch("tmp"), marker_}};
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

void LauncherTest::SetUp() {
  std::string pattern = (std::filesystem::temp_directory_path() / "gradwire-launch-test-XXXXXX").string();
  ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
  scratch_ = pattern;
  std::filesystem::create_directory(scratch_ / "tmp");
  marker_ = concat("GRADWIRE_LAUNCH_TEST=", random_job_id());
}

void LauncherTest::TearDown() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  EXPECT_EQ(marked_processes(), std::vector<pid_t>()) << "processes were left behind";
  EXPECT_TRUE(std::filesystem::is_empty(scratch_ / "tmp")) << "the rendezvous folder was left behind";
  std::filesystem::remove_all(scratch_);
}

void LauncherTest::start_program(const std::vector<std::string>& command, const std::string& input) {
  std::ofstream(scratch("stdin"), std::ios::binary) << input;
  for (const auto* stream : {"stdout", "stderr"}) std::filesystem::remove(scratch(stream));  // an earlier run's
  started_ = Clock::now();
  pid_ = ::fork();
  ASSERT_GE(pid_, 0);
  if (pid_ == 0) {
    ::setenv("TMPDIR", scratch("tmp").c_str(), 1);
    ::putenv(marker_.data());
    become(command, scratch("stdin"), scratch("stdout"), scratch("stderr"));
  }
  pidfd_ = watch(pid_);
  ASSERT_TRUE(pidfd_);
}

void LauncherTest::start(const std::vector<std::string>& arguments, const std::string& input) {
  std::vector<std::string> command = {GRADWIRE_RUN_PROGRAM};
  command.insert(command.end(), arguments.begin(), arguments.end());
  start_program(command, input);
}

int LauncherTest::finish_killed() {
  pollfd ended{pidfd_.get(), POLLIN, 0};
  const auto guard = std::chrono::duration_cast<std::chrono::milliseconds>(kGuard);
  if (::poll(&ended, 1, static_cast<int>(guard.count())) != 1) {
    ADD_FAILURE() << "gradwire-run hangs";
    ::kill(pid_, SIGKILL);
  }
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

Result LauncherTest::finish() {
  Result result;
  result.exit_code = finish_killed();
  result.seconds = std::chrono::duration<double>(Clock::now() - started_).count();
  result.out = read_file(scratch("stdout"));
  result.err = read_file(scratch("stderr"));
  EXPECT_EQ(marked_processes(), std::vector<pid_t>()) << "processes outlived gradwire-run";
  return result;
}

Result LauncherTest::run(const std::vector<std::string>& arguments, const std::string& input) {
  start(arguments, input);
  return finish();
}

Result LauncherTest::run_script(std::vector<std::string> options, const std::string& script, const std::string& input) {
  for (const auto* word : {"/bin/sh", "-c"}) options.emplace_back(word);
  options.push_back(script);
  return run(options, input);
}

void LauncherTest::start_script(std::vector<std::string> options, const std::string& script) {
  for (const auto* word : {"/bin/sh", "-c"}) options.emplace_back(word);
  options.push_back(script);
  start(options);
}

void LauncherTest::wait_for_output(const std::string& text, int times) {
  ASSERT_TRUE(eventually(kGuard, [&] { return count_of(read_file(scratch("stdout")), text) >= times; }))
      << "no '" << text << "' in: " << read_file(scratch("stdout")) << read_file(scratch("stderr"));
}

void LauncherTest::wait_for_error(const std::string& text) const {
  ASSERT_TRUE(eventually(kGuard, [&] { return count_of(read_file(scratch("stderr")), text) > 0; }))
      << "no '" << text << "' in: " << read_file(scratch("stderr"));
}

void LauncherTest::wait_for_state(pid_t pid, char state) const {
  const auto reached = [&] {
    return read_file(concat("/proc/", pid, "/stat")).find(concat(") ", state, " ")) != std::string::npos;
  };
  ASSERT_TRUE(eventually(kGuard, reached)) << "process " << pid << " does not come to state " << state;
}

void LauncherTest::wait_until_gone(pid_t pid) const {
  const auto gone = [&] { return !std::filesystem::exists(concat("/proc/", pid)); };
  ASSERT_TRUE(eventually(kGuard, gone)) << "process " << pid << " does not go";
}

int LauncherTest::wait_for_number(const std::string& path) const {
  const bool written = eventually(kGuard, [&] { return read_file(path).find('\n') != std::string::npos; });
  EXPECT_TRUE(written) << "nothing in " << path;
  return written ? std::stoi(read_file(path)) : -1;
}

void LauncherTest::signal_launcher(int signal) const {
  ASSERT_GT(pid_, 0);  // kill(-1) would mean everybody
  ASSERT_EQ(::kill(pid_, signal), 0);
}

std::vector<pid_t> LauncherTest::marked_processes() const {
  std::vector<pid_t> marked;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    pid_t pid = 0;
    const auto result = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (result.ec != std::errc() || result.ptr != name.data() + name.size()) continue;
    // Empty for a zombie, which is no longer there in any sense that matters here.
    if (read_file(entry.path() / "environ").find(marker_) != std::string::npos) marked.push_back(pid);
  }
  return marked;
}

void LauncherTest::wait_until_none_marked() const {
  EXPECT_TRUE(eventually(kGuard, [&] { return marked_processes().empty(); })) << "processes are still there";
}

}  // namespace gradwire::launch
