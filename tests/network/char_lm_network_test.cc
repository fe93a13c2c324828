// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Tests training on hosts with separate networks: losses, bytes on the link, restarts, launchers.
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/network_hosts.h"
#include "gradwire/base/strings.h"
#include "launch/launch_error.h"
#include "launch/launcher_fixture_internal.h"
#include "tests/support/secrets.h"

namespace gradwire::launch {
namespace {

using bench::NetworkHosts;
using Words = std::vector<std::string>;

struct Network {
  int hosts = 2;
  int ranks_per_host = 1;
  std::string rate = "100mbit";

  int ranks() const { return hosts * ranks_per_host; }
};
void PrintTo(const Network& network, std::ostream* out) {
  *out << network.hosts << "x" << network.ranks_per_host << " " << network.rate;
}

// What a job learned, from rank 0's JSON lines.
struct Curve {
  std::vector<std::int64_t> steps;
  std::vector<double> losses;
  std::string parameter_hash;  // "" where ranks differ
  std::string backend;
  double bytes = 0;  // that rank 0 sent for gradients in all steps, by the hook's formula
  double wire = 0;   // that all hosts put on the network from the start of the job to its end
};

class CharLmNetwork : public LauncherTest {
 protected:
  void SetUp() override {
    const std::string reason = NetworkHosts::why_not();
    if (!reason.empty()) GTEST_SKIP() << reason;
    LauncherTest::SetUp();
    set_up_ = true;
    std::ofstream text(scratch("text"));
    for (int i = 0; i < 400; ++i)
      text << i << " green bottles, and " << i * i << " blue ones, on wall " << i % 7 << ".\n";
  }
  void TearDown() override {
    if (set_up_) LauncherTest::TearDown();
  }

  void connect(const Network& network) {
    network_ = network;
    hosts_ = std::make_unique<NetworkHosts>(network.hosts);
    hosts_->shape(network.rate);
  }

  // char_lm with a model of 1.8 million parameters. What stands in `more` goes over what stands here.
  Words program(const Words& more) const {
    Words words{CHAR_LM_PROGRAM};
    for (const char* word :
         {"--layers", "1", "--width",   "384", "--heads",    "2",  "--context",      "16", "--batch",     "4",
          "--steps",  "6", "--threads", "1",   "--generate", "20", "--eval-batches", "1",  "--log-every", "1"})
      words.emplace_back(word);
    words.insert(words.end(), {"--text", scratch("text"), "--json", scratch("curve")});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  Curve curve() const {
    Curve found;
    std::ifstream in(scratch("curve"));
    for (std::string line; std::getline(in, line);) {
      const auto entry = nlohmann::json::parse(line);
      if (entry.at("type") == "step") {
        found.steps.push_back(entry.at("step"));
        found.losses.push_back(entry.at("loss"));
        found.bytes += entry.at("bytes_per_step").get<double>();
      } else if (entry.at("type") == "summary") {
        found.parameter_hash = entry.at("parameter_hash");
        found.backend = entry.at("backend");
      }
    }
    std::filesystem::remove(scratch("curve"));
    return found;
  }

  // The same ranks on one host, each told that it is on the host where the network has it.
  Curve on_one_host(const Words& more) {
    Words words = {"-n", std::to_string(network_.ranks()), "/bin/sh", "-c",
                   concat("GRADWIRE_HOST=host-$((RANK / ", network_.ranks_per_host, ")) exec \"$0\" \"$@\"")};
    const Words rest = program(more);
    words.insert(words.end(), rest.begin(), rest.end());
    const Result result = run(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return curve();
  }

  // gradwire-run on one of the hosts.
  BackgroundProgram node(int number, const Words& options, const Words& more) {
    Words words = {"-n",           std::to_string(network_.ranks_per_host),
                   "--nnodes",     std::to_string(network_.hosts),
                   "--node-rank",  std::to_string(number),
                   "--rendezvous", hosts_->address(0) + ":29400",
                   "--env",        "GLOO_SOCKET_IFNAME=eth0"};
    words.insert(words.end(), options.begin(), options.end());
    const Words rest = program(more);
    words.insert(words.end(), rest.begin(), rest.end());
    return launch(std::to_string(number), words, hosts_->enter(number));
  }

  std::uint64_t sent() const {
    std::uint64_t sum = 0;
    for (int host = 0; host < hosts_->count(); ++host) sum += hosts_->traffic(host).sent;
    return sum;
  }

  Curve on_hosts(const Words& more) {
    const std::uint64_t before = sent();
    std::vector<BackgroundProgram> launchers;
    for (int number = 0; number < network_.hosts; ++number) launchers.push_back(node(number, {}, more));
    for (auto& launcher : launchers) {
      const Result result = launcher.finish();
      EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    }
    Curve found = curve();
    found.wire = static_cast<double>(sent() - before);
    return found;
  }

  // Trains with `hook` on the network and on one host. `idle` is what the network carries without gradients: the
  // parameters, the losses, what launchers and ranks tell each other.
  void compare(const std::string& hook, const Curve& idle) {
    const Curve one = on_one_host({"--hook", hook});
    const Curve many = on_hosts({"--hook", hook});
    ASSERT_FALSE(one.losses.empty());
    EXPECT_EQ(many.losses, one.losses) << hook << ": same ranks, same steps of the same sums: same bits";
    EXPECT_EQ(many.parameter_hash, one.parameter_hash) << hook;
    EXPECT_EQ(many.backend, "hybrid");
    if (hook == "allreduce") {
      // Without hosts, in another order of additions.
      const Curve flat = on_one_host({"--backend", "shm"});
      ASSERT_EQ(flat.losses.size(), many.losses.size());
      for (std::size_t step = 0; step < flat.losses.size(); ++step)
        EXPECT_NEAR(many.losses[step], flat.losses[step], 1e-5) << step;
    }
    // Plain averages go between hosts in shares, one a rank; what compresses runs on the first rank of each host.
    const int senders = hook == "allreduce" ? network_.ranks() : network_.hosts;
    const double formula = many.bytes * senders;
    const double wire = many.wire - idle.wire;
    // Acknowledgements and headers are 5 % of few bytes only where messages are long: a kilobyte more a step from
    // each host to each other one, and eight a job for what launchers say by the clock.
    const double pairs = network_.hosts * (network_.hosts - 1);
    const double others = 1024.0 * static_cast<double>(many.steps.size()) * pairs + 8192.0 * network_.hosts;
    EXPECT_NEAR(wire, formula, 0.05 * formula + others) << hook;
    std::printf("%dx%d %-8s %-28s loss %.6f  formula %9.0f  wire %9.0f  (%+.2f%%)\n", network_.hosts,
                network_.ranks_per_host, network_.rate.c_str(), hook.c_str(), many.losses.back(), formula, wire,
                formula > 0 ? 100 * (wire / formula - 1) : 0.0);
    std::fflush(stdout);
  }

  NetworkHosts& hosts() { return *hosts_; }

 private:
  bool set_up_ = false;
  Network network_;
  std::unique_ptr<NetworkHosts> hosts_;
};

TEST_F(CharLmNetwork, LossesAreThoseOfOneHostAndBytesThoseOfTheFormula) {
  connect({2, 1, "1gbit"});
  const Curve idle = on_hosts({"--hook", "noop"});
  EXPECT_EQ(idle.bytes, 0);
  for (const char* hook : {"allreduce", "int8"}) compare(hook, idle);
}

// All hooks that the registry names, as the help of the program has them; those that begin plain begin soon.
std::vector<std::string> all_hooks(const std::string& help) {
  const std::string opening = "one of: ";
  const auto begin = help.find(opening) + opening.size();
  std::vector<std::string> hooks;
  std::string rest = help.substr(begin, help.find(" (", begin) - begin);
  while (!rest.empty()) {
    const auto comma = rest.find(", ");
    const std::string name = rest.substr(0, comma);
    const bool power = name.find("power_sgd") != std::string::npos;
    hooks.push_back(power ? name + ":start=2" : name == "dgc" ? "dgc:ramp=0" : name);
    rest = comma == std::string::npos ? "" : rest.substr(comma + 2);
  }
  return hooks;
}

class CharLmNetworkTable : public CharLmNetwork, public testing::WithParamInterface<Network> {};

TEST_P(CharLmNetworkTable, EveryHook) {
  start_program({CHAR_LM_PROGRAM, "--help"});
  const std::vector<std::string> hooks = all_hooks(finish().out);
  ASSERT_GE(hooks.size(), 20U);
  connect(GetParam());
  const Curve idle = on_hosts({"--hook", "noop"});
  for (const std::string& hook : hooks) compare(hook, idle);
}

INSTANTIATE_TEST_SUITE_P(Networks, CharLmNetworkTable,
                         testing::Values(Network{2, 1, "1gbit"}, Network{2, 1, "100mbit"}, Network{4, 1, "1gbit"},
                                         Network{4, 1, "100mbit"}, Network{2, 2, "1gbit"}, Network{2, 2, "100mbit"}),
                         [](const auto& info) {
                           return concat(info.param.hosts, "x", info.param.ranks_per_host, "at", info.param.rate);
                         });

class CharLmNetworkJobs : public CharLmNetwork {};

// A pulled cable costs the steps since the last checkpoint, and leaves no trace in the numbers.
TEST_F(CharLmNetworkJobs, AHostThatVanishesIsNamedAndTheJobGoesOnFromItsCheckpoint) {
  connect({});
  const Words steps = {"--steps", "30", "--hook", "int8"};
  const Curve whole = on_one_host(steps);
  const Words options = {"--max-restarts", "3", "--heartbeat-timeout", "1", "--grace", "0"};
  Words more = steps;
  more.insert(more.end(), {"--checkpoint", scratch("checkpoint"), "--checkpoint-every", "10"});
  auto first = node(0, options, more);
  auto second = node(1, options, more);
  first.wait_for("checkpoint of step 10 written");
  hosts().set_link(1, false);
  first.wait_for("node 1 (host-b, rank 1) has not been heard of for 1 s");
  second.wait_for("node 0 (host-a, rank 0) has not answered for 1 s");
  first.wait_for("all ranks start again (restart 1 of 3)");
  second.wait_for("all ranks start again (restart 1 of 3)");
  hosts().set_link(1, true);
  for (BackgroundProgram* launcher : {&first, &second}) {
    const Result result = launcher->finish();
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  }
  const Curve rest = curve();
  ASSERT_FALSE(rest.steps.empty());
  const auto done = rest.steps.front() - 1;
  EXPECT_TRUE(done == 10 || done == 20) << done << " steps were not done again";
  EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.begin() + done, whole.losses.end()));
  EXPECT_EQ(rest.parameter_hash, whole.parameter_hash);
}

// Without restarts the job ends, on both sides, within the deadline and with the host's name and its rank's number.
TEST_F(CharLmNetworkJobs, AHostThatVanishesEndsAJobWithoutRestarts) {
  connect({});
  const Words options = {"--heartbeat-timeout", "1", "--grace", "0"};
  auto first = node(0, options, {"--steps", "100000"});
  auto second = node(1, options, {"--steps", "100000"});
  first.wait_for("step     5/");
  hosts().set_link(1, false);
  const Result zero = first.finish();
  const Result one = second.finish();
  EXPECT_EQ(zero.exit_code, kHostLostExit);
  EXPECT_EQ(one.exit_code, kHostLostExit);
  EXPECT_EQ(count_of(zero.err, "node 1 (host-b, rank 1) has not been heard of for 1 s"), 1) << zero.err;
  EXPECT_EQ(count_of(one.err, "node 0 (host-a, rank 0) has not answered for 1 s"), 1) << one.err;
}

// torchrun keeps a store of its own; GRADWIRE_RENDEZVOUS gives the ranks a place for ours.
TEST_F(CharLmNetworkJobs, TorchrunOnTwoHostsLearnsTheSame) {
  if (!std::filesystem::exists(TORCHRUN_PROGRAM)) GTEST_SKIP() << "there is no torchrun";
  connect({2, 2, "1gbit"});
  const Curve own = on_one_host({});
  std::vector<BackgroundProgram> launchers;
  for (int number = 0; number < 2; ++number) {
    Words words = hosts().enter(number);
    words.insert(words.end(),
                 {"env", "GLOO_SOCKET_IFNAME=eth0", concat("GRADWIRE_RENDEZVOUS=tcp://", hosts().address(0), ":29501"),
                  TORCHRUN_PROGRAM, "--nnodes", "2", "--node-rank", std::to_string(number), "--master-addr",
                  hosts().address(0), "--master-port", "29500", "--nproc-per-node", "2", "--no-python"});
    const Words rest = program({});
    words.insert(words.end(), rest.begin(), rest.end());
    launchers.emplace_back(scratch(concat("torchrun", number)), words);
  }
  for (auto& launcher : launchers) {
    const Result result = launcher.finish();
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  }
  const Curve torchrun = curve();
  EXPECT_EQ(torchrun.backend, "hybrid");
  EXPECT_EQ(torchrun.losses, own.losses);
  EXPECT_EQ(torchrun.parameter_hash, own.parameter_hash);
}

TEST_F(CharLmNetworkJobs, MpirunOnTwoHostsLearnsTheSame) {
  if (std::string(MPIRUN_PROGRAM).empty()) GTEST_SKIP() << "gradwire was built without MPI";
  connect({2, 2, "1gbit"});
  // mpirun logs in to the other host with this; one that is called ssh would get options of ssh.
  std::ofstream(scratch("log-in")) << hosts().shell_script();
  ::chmod(scratch("log-in").c_str(), 0700);
  std::filesystem::create_directory(scratch("mpi"));
  const auto mpirun = [&](const Words& more) {
    Words words = hosts().enter(0);
    words.insert(words.end(), {"env",
                               "OMPI_ALLOW_RUN_AS_ROOT=1",
                               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                               "TMPDIR=" + scratch("mpi"),
                               concat("MASTER_ADDR=", hosts().address(0)),
                               "MASTER_PORT=29500",
                               "GLOO_SOCKET_IFNAME=eth0",
                               MPIRUN_PROGRAM,
                               "-n",
                               "4",
                               "--host",
                               concat(hosts().name(0), ":2,", hosts().name(1), ":2"),
                               "--bind-to",
                               "none",
                               "--mca",
                               "plm_rsh_agent",
                               scratch("log-in"),
                               "--mca",
                               "oob_tcp_if_include",
                               "eth0",
                               "--mca",
                               "btl_tcp_if_include",
                               "eth0"});
    for (const char* name : {"TMPDIR", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME"}) {
      words.insert(words.end(), {"-x", name});
    }
    const Words rest = program(more);
    words.insert(words.end(), rest.begin(), rest.end());
    const Result result = BackgroundProgram(scratch("mpirun"), words).finish();
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    return curve();
  };
  const Curve own = on_one_host({});
  const Curve hybrid = mpirun({});
  EXPECT_EQ(hybrid.backend, "hybrid");
  EXPECT_EQ(hybrid.losses, own.losses);
  EXPECT_EQ(hybrid.parameter_hash, own.parameter_hash);
  // mpi and shm combine ranks in the same order.
  const Curve flat = on_one_host({"--backend", "shm"});
  const Curve mpi = mpirun({"--backend", "mpi"});
  EXPECT_EQ(mpi.backend, "mpi");
  EXPECT_EQ(mpi.losses, flat.losses);
  EXPECT_EQ(mpi.parameter_hash, flat.parameter_hash);
}

// Connects to every port that processes on host 0 listen at, as soon as it is there, from host 1: with nothing to say,
// with half a greeting, with noise; and hangs up, or stays. Ends when the file in argv[2] is there.
const char* const kStranger = R"(
import os, socket, sys, time
holder, end, address = sys.argv[1:4]
seen, held = {}, []
payloads = [b'', b'GET / HTTP/1.1\r\n\r\n', b'gwtcpc\x01\x00' + os.urandom(64), os.urandom(8), os.urandom(4096), b'\xff' * 8, b'\0' * 64]
while not os.path.exists(end):
  for table in ('tcp', 'tcp6'):
    for line in open(f'/proc/{holder}/net/{table}').read().splitlines()[1:]:
      words = line.split()
      port = int(words[1].rsplit(':', 1)[1], 16)
      if words[3] != '0A' or seen.get(port, 0) >= 2 * len(payloads): continue
      number = seen[port] = seen.get(port, 0) + 1
      try:
        s = socket.create_connection((address, port), 5)
        s.sendall(payloads[number % len(payloads)])
        if number % 2: held.append(s)
        else: s.close()
      except OSError: pass
  time.sleep(0.005)
print('ports', len(seen), 'connections', sum(seen.values()))
)";

TEST_F(CharLmNetworkJobs, AStrangerAtEveryPortIsHarmless) {
  if (!test_support::has_secrets()) GTEST_SKIP() << test_support::kNoSecrets;
  connect({});
  const Words steps = {"--steps", "30"};
  const Curve quiet = on_one_host(steps);
  std::ofstream(scratch("secret")) << "the job's\n";
  std::filesystem::permissions(scratch("secret"), std::filesystem::perms::owner_read);
  Words stranger = hosts().enter(1);
  for (const std::string& word : {std::string("python3"), std::string("-c"), std::string(kStranger),
                                  std::to_string(hosts().processes(0).front()), scratch("end"), hosts().address(0)}) {
    stranger.push_back(word);
  }
  BackgroundProgram noise(scratch("stranger"), stranger);
  auto first = node(0, {"--secret-file", scratch("secret")}, steps);
  auto second = node(1, {"--secret-file", scratch("secret")}, steps);
  for (BackgroundProgram* launcher : {&first, &second}) {
    const Result result = launcher->finish();
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  }
  std::ofstream(scratch("end")).flush();
  const Result heard = noise.finish();
  EXPECT_EQ(heard.exit_code, 0) << heard.err;
  std::printf("the stranger saw: %s", heard.out.c_str());
  EXPECT_EQ(heard.out.find("ports 0"), std::string::npos) << heard.out;
  const Curve noisy = curve();
  EXPECT_EQ(noisy.losses, quiet.losses);
  EXPECT_EQ(noisy.parameter_hash, quiet.parameter_hash);
}

}  // namespace
}  // namespace gradwire::launch
