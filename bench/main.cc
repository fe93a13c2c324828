// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// gradwire-bench: measures the speed of gradwire and of its peers, in one run on one machine.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "bench/all_reduce_command.h"
#include "bench/codecs_command.h"
#include "bench/collectives_command.h"
#include "bench/ddp_command.h"
#include "bench/gradwire_worker.h"
#include "bench/hooks_command.h"
#include "bench/network_command.h"
#include "bench/sizes.h"

namespace gradwire::bench {
namespace {

// What the commands share that time ranks in turns with peers.
template <class Options>
void add_table_options(CLI::App* command, Options& options) {
  command->add_option("--backend", options.backend, "Backend of the ranks")->capture_default_str();
  command->add_option("--world", options.world, "Number of ranks")->capture_default_str();
  command->add_option("--rounds", options.rounds, "Rounds of ABBA")->capture_default_str()->check(CLI::Range(1, 1000));
  command->add_flag("--pin,!--no-pin", options.pin, "Keep each rank on a processor of its own (the default)");
  options.python = GRADWIRE_BENCH_PYTHON;
  command->add_option("--python", options.python, "A Python that has torch")->capture_default_str();
}

void add_all_reduce(CLI::App& app) {
  static AllReduceOptions options;
  static std::vector<std::string> sizes;
  auto* command = app.add_subcommand("all_reduce", "All-reduce at the Backend, by size");
  add_table_options(command, options);
  command->add_option("--bytes", sizes, "Sizes, as 4Ki,1Mi,25Mi,100Mi")->delimiter(',');
  command->add_option("--dtype", options.dtype, "Element type")->capture_default_str();
  command->add_option("--op", options.op, "Reduction")->capture_default_str();
  auto* in_place = command->add_flag_callback(
      "--in-place", [] { options.staged = false; }, "Only memory of the backend's allocate()");
  command
      ->add_flag_callback(
          "--staged", [] { options.in_place = false; }, "Only other memory")
      ->excludes(in_place);
  command->add_flag("--cold", options.cold, "Empty the caches before each call");
  command->add_flag("--peers", options.peers, "Run PyTorch's Gloo and OpenMPI beside it; a missing peer is an error");
  command->add_flag("--json", options.json, "One JSON line a size instead of the table");
  command->callback([] {
    if (!sizes.empty()) options.bytes = parse_bytes(sizes);
    run_all_reduce(options);
  });
}

void add_collectives(CLI::App& app) {
  static CollectivesCommandOptions options;
  static std::vector<std::string> sizes;
  auto* command = app.add_subcommand("collectives", "Every collective of a process group, by size");
  command->add_option("--collective", options.collectives, "Collectives, as all_gather,barrier (default: all)")
      ->delimiter(',');
  add_table_options(command, options);
  command->add_option("--bytes", sizes, "Sizes of the largest tensor, as 4Ki,25Mi (default: 4Ki,1Mi,25Mi)")
      ->delimiter(',');
  command->add_flag("--peers", options.peers, "Run PyTorch's Gloo and OpenMPI beside it; a missing peer is an error");
  command->add_flag("--json", options.json, "One JSON line a collective and size instead of the table");
  command->callback([] {
    if (!sizes.empty()) options.bytes = parse_bytes(sizes);
    run_collectives(options);
  });
}

void add_ddp(CLI::App& app) {
  static DdpCommandOptions options;
  auto* command = app.add_subcommand("ddp", "What DistributedDataParallel adds to a training step");
  command->add_option("--backend", options.backend, "shm, or any that processes can have")->capture_default_str();
  command->add_option("--world", options.world, "Number of ranks")->capture_default_str();
  command->add_option("--batch", options.batch, "Samples a rank and step")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--lanes", options.lanes, "Lanes of DDP, -1: chosen")->capture_default_str();
  command->add_option("--bucket-cap-mb", options.bucket_cap_mb, "Cap of DDP's buckets in MiB, 0: chosen")
      ->capture_default_str();
  command->add_option("--optimizer", options.optimizer, "The optimizer: sgd, momentum, adam or adamw")
      ->capture_default_str()
      ->check(CLI::IsMember({"sgd", "momentum", "adam", "adamw"}));
  command->add_option("--rounds", options.rounds, "Pairs of blocks")
      ->capture_default_str()
      ->check(CLI::Range(1, 10000));
  command->add_option("--steps", options.steps, "Steps a block")->capture_default_str()->check(CLI::Range(1, 10000));
  command->add_flag("--peers", options.peers, "Run PyTorch's DDP over Gloo beside it");
  command->add_flag("--apart", options.apart,
                    "Each way to train in processes of its own, as in a program that trains one model");
  command->add_flag("--recorder", options.recorder, "What the step recorder adds to a step with DDP, and nothing else");
  command->add_flag("--json", options.json, "One JSON line a case instead of the table");
  command->add_flag("--pin,!--no-pin", options.pin, "Keep each rank on a processor of its own (the default)");
  options.python = GRADWIRE_BENCH_PYTHON;
  command->add_option("--python", options.python, "A Python that has torch")->capture_default_str();
  command->callback([] { run_ddp(options); });
}

void add_hooks(CLI::App& app) {
  static HooksCommandOptions options;
  static std::string hooks;
  static std::vector<std::string> sizes;
  static bool list = false;
  auto* command = app.add_subcommand("hooks", "Every communication hook on a bucket of gradients");
  command->add_flag("--list", list, "Print the hooks with their options, bytes and papers, and measure nothing");
  command->add_option("--hook", hooks, "Hooks, as fp16_compress,power_sgd:rank=4,start=2,int8 (default: all)");
  add_table_options(command, options);
  command->add_option("--bytes", sizes, "Sizes of the bucket, as 1Mi,25Mi (default: 25Mi)")->delimiter(',');
  command->add_flag("--peers", options.peers, "Run PyTorch's hooks over Gloo beside ours");
  command->add_flag("--json", options.json, "One JSON line a hook and size instead of the table");
  command->callback([] {
    options.hooks = parse_names(hooks);
    if (!sizes.empty()) options.bytes = parse_bytes(sizes);
    list ? list_hooks(options.json) : run_hooks(options);
  });
}

// The exit code of a command that has one of its own.
int exit_code = 0;

void add_network(CLI::App& app) {
  static NetworkCommandOptions options;
  static std::string hooks;
  static std::vector<std::string> sizes;
  auto* command = app.add_subcommand(
      "network", "Hooks or collectives over backends that cross hosts, on hosts made of network namespaces");
  command->add_option("--hosts", options.hosts, "Number of hosts")->capture_default_str()->check(CLI::Range(2, 26));
  command->add_option("--ranks-per-host", options.ranks_per_host, "Ranks on each")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  command->add_option("--placement", options.placement, "Of ranks on hosts: neighbours on one, or dealt out in turn")
      ->capture_default_str()
      ->check(CLI::IsMember(kPlacements));
  command->add_option("--rate", options.rate, "Of every host's link, as 1gbit or 100mbit; none: not limited")
      ->capture_default_str();
  command->add_option("--delay", options.delay, "Of every host's way out, as 1ms (where the kernel has netem)");
  command->add_option("--backend", options.backends, "Backends")->capture_default_str()->delimiter(',');
  auto* hook =
      command->add_option("--hook", hooks, "Hooks, as fp16_compress,power_sgd:rank=4 (default: eight of them)");
  command->add_option("--collective", options.collectives, "Measure collectives instead, as all_reduce,barrier")
      ->delimiter(',')
      ->excludes(hook);
  command->add_option("--bytes", sizes, "Sizes of the bucket or of the largest tensor, as 1Mi,25Mi (default: 25Mi)")
      ->delimiter(',');
  command->add_option("--rounds", options.rounds, "Rounds of ABBA")->capture_default_str()->check(CLI::Range(1, 1000));
  command->add_flag("--peers", options.peers,
                    "Run on the same hosts: PyTorch's hooks over Gloo; for collectives PyTorch's Gloo and OpenMPI");
  command->add_flag("--json", options.json, "One JSON line a backend, hook and size instead of the table");
  options.python = GRADWIRE_BENCH_PYTHON;
  command->add_option("--python", options.python, "A Python that has torch")->capture_default_str();
  command->callback([] {
    options.hooks = parse_names(hooks);
    if (!sizes.empty()) options.bytes = parse_bytes(sizes);
    exit_code = run_network(options);
  });
}

void add_codecs(CLI::App& app) {
  static CodecsCommandOptions options;
  static std::string codecs;
  static std::vector<std::string> sizes;
  auto* command = app.add_subcommand("codecs", "Encoding and decoding on one core, in multiples of memcpy");
  command->add_option("--codec", codecs,
                      "Codecs, as int8,top_k:ratio=0.001, or power_sgd:rank=4 for its products (default: all)");
  command->add_option("--bytes", sizes, "Sizes of the values, as 1Mi,25Mi (default: 25Mi)")->delimiter(',');
  command->add_option("--rounds", options.rounds, "Rounds of ABBA")->capture_default_str()->check(CLI::Range(1, 1000));
  command->add_flag("--peers", options.peers, "Run PyTorch's operators for the same beside ours");
  command->add_flag("--json", options.json, "One JSON line a codec, direction and size instead of the table");
  command->add_flag("--pin,!--no-pin", options.pin, "Stay on one processor (the default)");
  options.python = GRADWIRE_BENCH_PYTHON;
  command->add_option("--python", options.python, "A Python that has torch")->capture_default_str();
  command->callback([] {
    options.codecs = parse_names(codecs);
    if (!sizes.empty()) options.bytes = parse_bytes(sizes);
    run_codecs(options);
  });
}

// What every worker that is a rank is told.
void add_rank_options(CLI::App* command, RankOptions& options) {
  command->add_option("--backend", options.backend);
  command->add_option("--socket", options.socket)->required();
  command->add_option("--rendezvous", options.rendezvous)->required();
  command->add_option("--rank", options.rank);
  command->add_option("--world", options.world);
  command->add_flag("--pin,!--no-pin", options.pin);
}

void add_hook_worker(CLI::App& app) {
  static RankOptions options;
  auto* command = app.add_subcommand("hook-worker", "One rank that runs hooks (started by hooks)");
  command->group("");
  add_rank_options(command, options);
  command->callback([] { run_hook_worker(options); });
}

void add_collective_worker(CLI::App& app) {
  static RankOptions options;
  auto* command = app.add_subcommand("collective-worker", "One rank that runs collectives (started by collectives)");
  command->group("");
  add_rank_options(command, options);
  command->callback([] { run_collective_worker(options); });
}

void add_codec_worker(CLI::App& app) {
  static CodecWorkerOptions options;
  auto* command = app.add_subcommand("codec-worker", "One core that encodes and decodes (started by codecs)");
  command->group("");
  command->add_option("--socket", options.socket)->required();
  command->add_flag("--pin,!--no-pin", options.pin);
  command->callback([] { run_codec_worker(options); });
}

void add_training_worker(CLI::App& app) {
  static TrainingWorkerOptions options;
  auto* command = app.add_subcommand("training-worker", "One rank that trains (started by ddp)");
  command->group("");
  add_rank_options(command, options);
  command->add_option("--contestant", options.contestant);
  command->add_option("--batch", options.batch);
  command->add_option("--lanes", options.lanes);
  command->add_option("--bucket-cap-mb", options.bucket_cap_mb);
  command->add_option("--optimizer", options.optimizer);
  command->callback([] { run_training_worker(options); });
}

void add_worker(CLI::App& app) {
  static WorkerOptions options;
  static std::string dtype = "f32";
  static std::string op = "sum";
  auto* command = app.add_subcommand("worker", "One rank of a contestant (started by the other commands)");
  command->group("");
  add_rank_options(command, options);
  command->add_option("--contestant", options.contestant)->required();
  command->add_option("--dtype", dtype);
  command->add_option("--op", op);
  command->callback([] {
    options.dtype = dtype_from_name(dtype);
    options.op = reduce_op_from_name(op);
    run_gradwire_worker(options);
  });
}

int run(int argc, char** argv) {
  CLI::App app("Speed of gradwire beside its peers, in one run on one machine", "gradwire-bench");
  app.require_subcommand(1);
  add_all_reduce(app);
  add_collectives(app);
  add_ddp(app);
  add_hooks(app);
  add_network(app);
  add_codecs(app);
  add_worker(app);
  add_training_worker(app);
  add_hook_worker(app);
  add_collective_worker(app);
  add_codec_worker(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gradwire-bench: %s\n", error.what());
    return 1;
  }
  return exit_code;
}

}  // namespace
}  // namespace gradwire::bench

int main(int argc, char** argv) { return gradwire::bench::run(argc, argv); }
