// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Runs the built gradwire-run for tests, and checks after every test that it left nothing behind.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "gradwire/base/os_handles.h"

namespace gradwire::launch {

// The result of a program's run.
struct Result {
  int exit_code = -1;  // 128 + signal when a signal ended the launcher itself
  std::string out;
  std::string err;
  double seconds = 0;  // from start to end
};

// A program that runs while the test goes on; its stdout and stderr go to files.
class BackgroundProgram {
 public:
  // The files are called <files>.out and <files>.err. `extra` is added to the program's environment: NAME=VALUE.
  BackgroundProgram(std::string files, const std::vector<std::string>& command,
                    const std::vector<std::string>& extra = {});
  BackgroundProgram(BackgroundProgram&& other) noexcept = default;
  ~BackgroundProgram();  // kills the program

  // Waits for the program's end.
  Result finish();
  // Whether the program ends within the time.
  bool ends_within(std::chrono::milliseconds time) const;
  // Waits until stdout and stderr together hold `text` at least `times` times.
  void wait_for(const std::string& text, int times = 1) const;
  void signal(int signal) const;
  // Kills the program's child processes, not the program itself.
  void kill_children() const;
  std::string out() const;
  std::string err() const;

 private:
  std::string files_;
  UniqueFd pidfd_;
  pid_t pid_ = -1;
  std::chrono::steady_clock::time_point started_;
};

// Each test gets a scratch folder, with the TMPDIR of its launchers in it, and a marker that its launchers and all
// their descendants carry in their environment. At the end no process carries the marker and TMPDIR is empty.
class LauncherTest : public ::testing::Test {
 protected:
  // Far longer than any step of these tests takes, so only a hang reaches this limit.
  static constexpr std::chrono::seconds kGuard{60};

  void SetUp() override;
  void TearDown() override;

  // Starts gradwire-run with stdin from `input`, stdout and stderr to files.
  void start(const std::vector<std::string>& arguments, const std::string& input = "");
  // Starts any program in the same way.
  void start_program(const std::vector<std::string>& command, const std::string& input = "");
  // Waits for the end of the launcher, and checks that no process outlives it.
  Result finish();
  // The same for a launcher that was killed, whose ranks may end a little later. Returns the launcher's exit code.
  int finish_killed();
  Result run(const std::vector<std::string>& arguments, const std::string& input = "");
  // The same with a shell script as the ranks' program.
  Result run_script(std::vector<std::string> options, const std::string& script, const std::string& input = "");
  void start_script(std::vector<std::string> options, const std::string& script);

  // Waits until the launcher's stdout holds `text` at least `times` times.
  void wait_for_output(const std::string& text, int times = 1);
  // The same of the launcher's stderr, once.
  void wait_for_error(const std::string& text) const;
  void signal_launcher(int signal) const;
  pid_t launcher() const { return pid_; }

  // Waits until a process is in a state of /proc/PID/stat: 'Z' has ended and is not reaped, 'T' is stopped.
  void wait_for_state(pid_t pid, char state) const;

  // Waits until a process is gone, zombie included.
  void wait_until_gone(pid_t pid) const;
  // Waits until a file holds a line with a number, and returns the number; -1 when the guard passes first.
  int wait_for_number(const std::string& path) const;

  // Processes, zombies aside, that carry this test's marker.
  std::vector<pid_t> marked_processes() const;
  // Waits until there are none.
  void wait_until_none_marked() const;

  std::string scratch(const std::string& name) const { return (scratch_ / name).string(); }

  // gradwire-run with these arguments, as a program of its own.
  BackgroundProgram launch(const std::string& name, const std::vector<std::string>& arguments,
                           const std::vector<std::string>& before = {}) const;

 private:
  std::filesystem::path scratch_;
  std::string marker_;
  pid_t pid_ = -1;
  UniqueFd pidfd_;
  std::chrono::steady_clock::time_point started_;
};

std::string read_file(const std::string& path);
std::vector<std::string> lines_of(const std::string& text);
int count_of(const std::string& text, const std::string& part);

}  // namespace gradwire::launch
