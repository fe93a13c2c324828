// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The contestant OpenMPI: mpirun -n N gradwire-bench-mpi SOCKET DTYPE OP pin|free
#include <mpi.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/worker.h"

namespace {

MPI_Datatype datatype(const std::string& name) {
  if (name == "f32") return MPI_FLOAT;
  if (name == "f64") return MPI_DOUBLE;
  if (name == "i8") return MPI_INT8_T;
  if (name == "u8") return MPI_UINT8_T;
  if (name == "i32") return MPI_INT32_T;
  if (name == "i64") return MPI_INT64_T;
  return MPI_DATATYPE_NULL;
}

MPI_Op operation(const std::string& name) {
  if (name == "sum") return MPI_SUM;
  if (name == "product") return MPI_PROD;
  if (name == "min") return MPI_MIN;
  if (name == "max") return MPI_MAX;
  if (name == "band") return MPI_BAND;
  if (name == "bor") return MPI_BOR;
  if (name == "bxor") return MPI_BXOR;
  return MPI_OP_NULL;
}

// What bench/collectives_command.h says of each collective: `whole` has the bytes of a measurement, `part` a rank's
// share.
class Collective {
 public:
  Collective(int rank, MPI_Datatype type, MPI_Op op) : rank_(rank), type_(type), op_(op) {
    MPI_Comm_size(MPI_COMM_WORLD, &world_);
  }

  void prepare(const gradwire::bench::Measurement& what) {
    int element = 1;
    MPI_Type_size(type_, &element);
    name_ = what.variant;
    whole_.assign(what.bytes, 0);
    other_.assign(what.bytes, 0);
    count_ = static_cast<int>(what.bytes) / element;
    share_ = count_ / world_;
    if (!calls().contains(name_)) throw std::runtime_error("OpenMPI's worker has no " + name_);
  }
  // What a call reads was written by its owner since the last call.
  void refill() {
    std::memset(whole_.data(), 0, whole_.size());
    const bool offers_a_part = name_ == "all_gather" || name_ == "gather";
    if (offers_a_part) std::memset(other_.data(), 0, whole_.size() / static_cast<std::size_t>(world_));
  }
  void run() { (this->*calls().at(name_))(); }

 private:
  using Call = void (Collective::*)();
  static const std::map<std::string, Call>& calls() {
    static const std::map<std::string, Call> all{
        {"all_reduce", &Collective::all_reduce}, {"broadcast", &Collective::broadcast},
        {"reduce", &Collective::reduce},         {"all_gather", &Collective::all_gather},
        {"gather", &Collective::gather},         {"scatter", &Collective::scatter},
        {"all_to_all", &Collective::all_to_all}, {"reduce_scatter", &Collective::reduce_scatter},
        {"send_recv", &Collective::send_recv},   {"barrier", &Collective::barrier}};
    return all;
  }

  void all_reduce() { MPI_Allreduce(MPI_IN_PLACE, whole_.data(), count_, type_, op_, MPI_COMM_WORLD); }
  void broadcast() { MPI_Bcast(whole_.data(), count_, type_, world_ - 1, MPI_COMM_WORLD); }
  void reduce() {
    const void* const from = rank_ == 0 ? MPI_IN_PLACE : whole_.data();
    MPI_Reduce(from, whole_.data(), count_, type_, op_, 0, MPI_COMM_WORLD);
  }
  void all_gather() { MPI_Allgather(other_.data(), share_, type_, whole_.data(), share_, type_, MPI_COMM_WORLD); }
  void gather() { MPI_Gather(other_.data(), share_, type_, whole_.data(), share_, type_, 0, MPI_COMM_WORLD); }
  void scatter() {
    MPI_Scatter(whole_.data(), share_, type_, other_.data(), share_, type_, world_ - 1, MPI_COMM_WORLD);
  }
  void reduce_scatter() { MPI_Reduce_scatter_block(whole_.data(), other_.data(), share_, type_, op_, MPI_COMM_WORLD); }
  void all_to_all() { MPI_Alltoall(whole_.data(), share_, type_, other_.data(), share_, type_, MPI_COMM_WORLD); }
  void send_recv() {
    MPI_Sendrecv(whole_.data(), count_, type_, (rank_ + 1) % world_, 0, other_.data(), count_, type_,
                 (rank_ + world_ - 1) % world_, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  void barrier() { MPI_Barrier(MPI_COMM_WORLD); }

  const int rank_;
  int world_ = 1;
  const MPI_Datatype type_;
  const MPI_Op op_;
  std::string name_;
  std::vector<char> whole_;
  std::vector<char> other_;
  int count_ = 0;
  int share_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() != 4 || datatype(arguments[1]) == MPI_DATATYPE_NULL || operation(arguments[2]) == MPI_OP_NULL) {
    std::fprintf(stderr, "gradwire-bench-mpi: OpenMPI has no such dtype or op\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  const MPI_Datatype type = datatype(arguments[1]);
  const MPI_Op op = operation(arguments[2]);
  if (arguments[3] == "pin") gradwire::bench::pin_to_processor(rank);
  Collective collective(rank, type, op);
  gradwire::bench::serve(
      arguments[0], "openmpi", rank,
      {[&](const gradwire::bench::Measurement& what) { collective.prepare(what); }, [&] { collective.refill(); },
       [] { MPI_Barrier(MPI_COMM_WORLD); }, [&] { collective.run(); }});
  MPI_Finalize();
  return 0;
}
