// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/job/job_environment_internal.h"

#include <charconv>
#include <climits>

#include "gradwire/base/environment.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::internal {
namespace {

class Reader {
 public:
  explicit Reader(const ReadVariable& read) : read_(read) {}

  std::string text(const char* name) const { return read_(name).value_or(""); }
  bool has(const char* name) const { return read_(name).has_value(); }

  std::optional<int> number(const char* name, int low, int high = INT_MAX) const {
    const auto value = read_(name);
    if (!value) return std::nullopt;
    int number = 0;
    const char* end = value->data() + value->size();
    const auto [rest, problem] = std::from_chars(value->data(), end, number);
    if (problem != std::errc() || rest != end || number < low || number > high) {
      throw InvalidArgument(concat("the environment variable ", name, " is '", *value, "'; it must be a number from ",
                                   low, high == INT_MAX ? std::string(" up") : concat(" to ", high)));
    }
    return number;
  }

  // The first of two names that is set.
  std::string first_of(const char* one, const char* other) const { return has(one) ? text(one) : text(other); }

 private:
  const ReadVariable& read_;
};

void take_ranks(JobEnvironment& job, const Reader& read, const char* rank, const char* size, const char* local_size) {
  job.rank = read.number(rank, 0);
  job.world_size = read.number(size, 1);
  job.local_world_size = read.number(local_size, 1);
  job.rank_variable = rank;
  job.world_size_variable = size;
}

void take_master(JobEnvironment& job, const Reader& read) {
  job.master_address = read.text("MASTER_ADDR");
  job.master_port = read.number("MASTER_PORT", 0, 65535);
}

// The folder that one start of torchrun makes for all its workers' error files holds what run id and port do not: which
// start it was.
std::string torchrun_key(const Reader& read) {
  std::string folder = read.text("TORCHELASTIC_ERROR_FILE");
  for (int level = 0; level < 2; ++level) folder = folder.substr(0, std::min(folder.size(), folder.rfind('/')));
  return concat("torchrun:", read.text("TORCHELASTIC_RUN_ID"), ":", read.text("MASTER_ADDR"), ":",
                read.text("MASTER_PORT"), ":", read.text("TORCHELASTIC_RESTART_COUNT"), ":", folder);
}

JobEnvironment torchrun(const Reader& read) {
  JobEnvironment job;
  job.launcher = "torchrun";
  take_ranks(job, read, "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE");
  job.job_key = torchrun_key(read);
  if (read.text("TORCHELASTIC_USE_AGENT_STORE") == "False") take_master(job, read);
  return job;
}

JobEnvironment open_mpi(const Reader& read) {
  JobEnvironment job;
  job.launcher = "mpirun";
  take_ranks(job, read, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE");
  const std::string id = read.first_of("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid");
  if (!id.empty())
    job.job_key = concat("mpirun:", id, ":", read.text("PMIX_SERVER_URI2"), read.text("OMPI_MCA_orte_hnp_uri"));
  take_master(job, read);
  return job;
}

JobEnvironment pmi(const Reader& read) {
  JobEnvironment job;
  job.launcher = "PMI";
  take_ranks(job, read, "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS");
  const std::string id = read.first_of("PMI_JOBID", "PMI_PORT");
  if (!id.empty()) job.job_key = concat("pmi:", id);
  take_master(job, read);
  return job;
}

JobEnvironment slurm(const Reader& read) {
  JobEnvironment job;
  job.launcher = "srun";
  const char* size = read.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  take_ranks(job, read, "SLURM_PROCID", size, "SLURM_NTASKS_PER_NODE");
  // Tasks per node may be a wish that does not divide; the number of nodes is certain.
  job.local_world_size =
      read.first_of("SLURM_STEP_NUM_NODES", "SLURM_NNODES") == "1" ? job.world_size : std::optional<int>(0);
  job.job_key = concat("slurm:", read.first_of("SLURM_JOB_ID", "SLURM_JOBID"), ".",
                       read.first_of("SLURM_STEP_ID", "SLURM_STEPID"), ".", read.text("SLURM_RESTART_COUNT"));
  take_master(job, read);
  return job;
}

JobEnvironment by_hand(const Reader& read) {
  JobEnvironment job;
  job.launcher = "RANK and WORLD_SIZE";
  take_ranks(job, read, "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE");
  take_master(job, read);
  return job;
}

// A variable that only a process among others has. These launchers need a method or options (init_process_group()).
std::string find_hint(const Reader& read) {
  for (const char* name :
       {"MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "PMIX_RANK", "MV2_COMM_WORLD_RANK",
        "FLUX_TASK_RANK", "PALS_RANKID", "ALPS_APP_PE", "JSM_NAMESPACE_RANK"}) {
    if (read.has(name)) return name;
  }
  // The script of a batch job, outside of srun.
  if (read.has("SLURM_PROCID") && read.text("SLURM_NTASKS") != "1") return "SLURM_PROCID";
  return "";
}

}  // namespace

ReadVariable process_environment() {
  return [](const char* name) { return environment(name); };
}

JobEnvironment read_job_environment(const ReadVariable& variable) {
  const Reader read(variable);
  JobEnvironment job;
  if (read.has("GRADWIRE_RENDEZVOUS")) {
    job = by_hand(read);
    job.launcher = "gradwire-run";
    job.rendezvous = read.text("GRADWIRE_RENDEZVOUS");
  } else if (read.has("TORCHELASTIC_RUN_ID")) {
    job = torchrun(read);
  } else if (read.has("RANK") || read.has("WORLD_SIZE")) {
    job = by_hand(read);
  } else if (read.has("OMPI_COMM_WORLD_RANK")) {
    job = open_mpi(read);
  } else if (read.has("PMI_RANK")) {
    job = pmi(read);
  } else if (read.has("SLURM_PROCID") && (read.has("SLURM_STEP_ID") || read.has("SLURM_STEPID"))) {
    job = slurm(read);
  } else {
    job.rank_variable = "RANK";
    job.world_size_variable = "WORLD_SIZE";
    job.hint = find_hint(read);
    take_master(job, read);
  }
  return job;
}

}  // namespace gradwire::internal
