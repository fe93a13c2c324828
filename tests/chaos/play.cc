// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/play.h"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "gradwire/base/error.h"
#include "gradwire/base/process.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/tcp_store.h"
#include "tests/support/temporary_folder.h"

namespace gradwire::testing {
namespace {

// Longer than any deadline of a call: what is still there then hangs where no deadline counts.
constexpr Milliseconds kPatience = 2 * kGuard;

void serve_store(Stage& stage) {
  TcpStoreOptions options;
  options.is_server = true;
  TcpStore server(options);
  stage.port.store(server.port());
  stage.serving.raise();
  stage.done.await(static_cast<std::uint32_t>(-1));  // until it is killed
}

// The threads of a process, and where in the kernel each is.
std::string where_is(pid_t pid) {
  std::string text;
  std::error_code gone;
  for (const auto& task : std::filesystem::directory_iterator(concat("/proc/", pid, "/task"), gone)) {
    const auto read = [&](const char* name) {
      std::ifstream file(task.path() / name);
      std::stringstream all;
      all << file.rdbuf();
      return all.str();
    };
    text += concat("  thread ", task.path().filename().string(), " ", read("comm"), "    waits in ", read("wchan"),
                   ", system call ", read("syscall"), read("stack"));
  }
  return text;
}

class Play {
 public:
  explicit Play(const Fault& fault) : fault_(fault) {}

  Outcome run() {
    {
      const TemporaryFolder folder;
      const std::string store = make_store_file(folder.path());
      const Leftovers leftovers;
      if (fault_.tcp_store) start_server();
      if (fault_.what->ranks_are_threads) {
        children_.emplace_back("the ranks", [&] { be_all_ranks(); });
      } else {
        for (int rank = 0; rank < fault_.ranks; ++rank) {
          children_.emplace_back(concat("rank ", rank), [&, rank] { be_rank(rank, store); });
        }
      }
      watch();
      children_.clear();
      server_.reset();
      const pid_t orphan = stage_->orphan.load();
      if (orphan != 0 && !reap(orphan)) outcome_.complain(Complaint::hang, "the orphan does not end");
      for (const std::string& what : leftovers.find()) outcome_.complain(Complaint::left, what);
    }
    return std::move(outcome_);
  }

 private:
  std::string make_store_file(const std::string& folder) const {
    // Ranks may be another user than this process.
    std::filesystem::permissions(folder, std::filesystem::perms::all);
    const std::string path = folder + "/store";
    const UniqueFd file(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    ::fchmod(file.get(), 0666);
    return path;
  }

  void start_server() {
    server_.emplace("the store", [this] { serve_store(*stage_.operator->()); });
    stage_->serving.await(1);
  }

  void be_rank(int rank, const std::string& store) {
    if (fault_.as_nobody) become_nobody();
    Member member(fault_, rank, *stage_.operator->(), store);
    fault_.what->play(member);
  }

  void be_all_ranks() {
    const auto store = std::make_shared<HashStore>();
    std::vector<Thread> ranks;
    for (int rank = 0; rank < fault_.ranks; ++rank) {
      ranks.emplace_back(concat("rank ", rank), [&, rank] {
        try {
          Member member(fault_, rank, *stage_.operator->(), "", store);
          fault_.what->play(member);
        } catch (const std::exception& error) {
          Member::report(Complaint::wrong, concat("an exception left rank ", rank, ": ", describe(error)));
        }
      });
    }
  }

  void watch() {
    const Deadline guard = Deadline::after(kPatience);
    for (std::size_t i = 0; i < children_.size(); ++i) {
      const ChildProcess::Ending ending = children_[i].wait(guard);
      if (!ending.ended) {
        const char* const doing = i < kMaxRanks ? stage_->doing[i].load() : nullptr;
        outcome_.complain(Complaint::hang,
                          concat("process ", i, " hangs in '", doing != nullptr ? doing : "?", "' (call ",
                                 stage_->calls[i].load(), ")\n", where_is(children_[i].pid())));
      }
      take(static_cast<int>(i), ending);
    }
  }

  void take(int rank, const ChildProcess::Ending& ending) {
    const bool victim = is_victim(fault_, rank) && !fault_.what->ranks_are_threads;
    const Ending expected = victim ? fault_.what->ending : Ending::well;
    const bool killed = ending.ended && !ending.exited;
    const bool as_expected = expected == Ending::killed ? killed && ending.code == SIGKILL
                             : expected == Ending::gone ? ending.ended
                                                        : ending.ended && ending.exited && ending.code == 0;
    if (!ending.failures.empty()) outcome_.complain(Complaint::wrong, ending.failures);
    if (ending.ended && !as_expected && ending.failures.empty()) {
      outcome_.complain(Complaint::wrong, concat("rank ", rank, killed ? " was ended by signal " : " exited with ",
                                                 ending.code, victim ? ": the fault did not land" : ""));
    }
    std::istringstream notes(ending.notes);
    for (std::string word, text; notes >> word && std::getline(notes, text);) hear(rank, word, text);
  }

  void hear(int rank, const std::string& word, const std::string& text) {
    if (word == "known") return outcome_.milliseconds.push_back(std::stod(text));
    const Complaint complaint = word == "hang"      ? Complaint::hang
                                : word == "unnamed" ? Complaint::unnamed
                                : word == "left"    ? Complaint::left
                                                    : Complaint::wrong;
    outcome_.complain(complaint, concat("rank ", rank, ", ", word, ":", text));
  }

  const Fault fault_;
  const SharedPage<Stage> stage_;
  std::optional<ChildProcess> server_;
  std::vector<ChildProcess> children_;
  Outcome outcome_;
};

}  // namespace

void become_nobody() {
  const passwd* const nobody = ::getpwnam("nobody");
  if (nobody == nullptr || ::setgroups(0, nullptr) != 0 || ::setgid(nobody->pw_gid) != 0 ||
      ::setuid(nobody->pw_uid) != 0) {
    throw ResourceError("the test cannot become another user");
  }
  // The kernel takes both away with the old user: to look into /proc/self, and to end with the parent.
  ::prctl(PR_SET_DUMPABLE, 1);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
}

Outcome play(const Fault& fault) { return Play(fault).run(); }

}  // namespace gradwire::testing
