// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One rank of a fault: what it does, what it expects, and what it reports.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "gradwire/base/error.h"
#include "tests/chaos/leftovers.h"
#include "tests/chaos/program.h"
#include "tests/chaos/stage.h"

namespace gradwire::testing {

// What a rank, or the play itself, finds wrong.
enum class Complaint {
  hang,     // a call or a process came to no end in time
  wrong,    // a wrong result, or an outcome that no contract allows
  unnamed,  // an error that does not name the victim, or blames another
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
  // Numbers that are the same on all ranks, as long as all draw alike.
  Random& random() { return random_; }

  // Makes the backend and the program. What the process holds is measured before.
  void join(Milliseconds timeout = kGuard);
  void make_calls(int count);
  void warm_up() { make_calls(fault_.warm_up); }
  void make_calls_for_ever();

  // The victim's end: the clock is stamped, then SIGKILL.
  void die();

  // Runs `body`, which must end by the error that the victim's death is, soon enough and with its name. `also_timeout`:
  // a TimeoutError will do as well.
  void learn(const std::function<void()>& body, bool also_timeout = false);

  // A rendezvous that the victim makes impossible: an error of any kind, which says which rank that was.
  void fail_to_meet(Milliseconds timeout);
  // After learn(): the group is at its end, lets go of all it had, and the survivors can make another.
  void after_death();
  // After an abort, on all ranks: the group lets go of all it had, and all can make another.
  void after_abort();
  // After a fault that ends nothing: calls go well, and then all leave.
  void after_nothing();
  // Destroys program and backend, and reports what is left of them in this process.
  void leave();

  // In a forked child: destroys program, backend and store, as a program's end does.
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
