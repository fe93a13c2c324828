// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One rank in the run of a fault: its actions, its checks and its complaints.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "gradwire/base/error.h"
#include "tests/chaos/leftovers.h"
#include "tests/chaos/program.h"
#include "tests/chaos/stage.h"

namespace gradwire::testing {

// The kinds of complaints of a rank or of the test itself.
enum class Complaint {
  hang,     // a call or a process did not end in time
  wrong,    // a wrong result, or an outcome that no contract allows
  unnamed,  // an error that does not name the victim, or names another rank
  left,     // something was left behind
};
inline constexpr int kComplaints = 4;

class Member {
 public:
  // `shared_store`: for ranks that are threads, null otherwise.
  Member(const Fault& fault, int rank, Stage& stage, const std::string& store_path,
         std::shared_ptr<Store> shared_store = nullptr);

  const Fault& fault() const { return fault_; }
  Stage& stage() const { return stage_; }
  int rank() const { return rank_; }
  int size() const { return fault_.ranks; }
  int victim() const { return fault_.victim; }
  bool is_victim() const { return testing::is_victim(fault_, rank_); }
  int survivors() const { return fault_.ranks - fault_.what->victims; }
  RankContext& context() const { return *context_; }
  Channel& channel() const { return context_->channel(); }
  Program& program() const { return *program_; }
  // Random numbers. They are the same on all ranks while all ranks draw equally many.
  Random& random() { return random_; }

  // Makes the backend and the program. The constructor has recorded the resources of this process before.
  void join(Milliseconds timeout = kGuard);
  void make_calls(int count);
  // The calls before the fault, which all ranks have ended at return.
  void warm_up();
  void make_calls_for_ever();

  // Ends the victim: records the time, then raises SIGKILL.
  void die();

  // Runs `body`, which must throw the error for the victim's death, in time, with the victim's number. `also_timeout`:
  // a TimeoutError is right too.
  void learn(const std::function<void()>& body, bool also_timeout = false);

  // Runs a rendezvous that the victim makes impossible. It must throw an error of any kind that names the victim.
  void fail_to_meet(Milliseconds timeout);
  // After learn(): checks that the group is at its end, that the group has released all its resources, and that the
  // survivors can make another group.
  void after_death();
  // After an abort, on all ranks: checks that the group has released all its resources, and that all ranks can make
  // another group.
  void after_abort();
  // After a fault that does not end the group: checks that calls succeed, and that all ranks can leave.
  void after_nothing();
  // Destroys program and backend, and reports the resources that they left in this process.
  void leave();

  // In a forked child: destroys program, backend and store, as at the end of a program.
  void let_go_in_child();

  static void report(Complaint complaint, const std::string& text);

 private:
  void judge(const std::exception& error, bool also_timeout);
  bool names_a_victim(const std::vector<int>& peers, const std::string& text) const;
  bool is_about_a_survivor(const PeerError& error) const;
  std::shared_ptr<Store> open_store(const std::string& path) const;
  std::unique_ptr<RankContext> make_context(int rank, int size) const;
  void expect_ended() const;
  void make_another_world(int rank, int size);

  const Fault fault_;
  Stage& stage_;
  const int rank_;
  const World world_;
  std::shared_ptr<Store> store_;
  Random random_;
  Footprint before_;
  std::unique_ptr<RankContext> context_;
  std::unique_ptr<Program> program_;
};

}  // namespace gradwire::testing
