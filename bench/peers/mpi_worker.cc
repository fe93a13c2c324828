// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The contestant OpenMPI: mpirun -n N gradwire-bench-mpi SOCKET DTYPE OP pin|free
#include <mpi.h>

#include <cstring>
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
  int element = 1;
  MPI_Type_size(type, &element);
  std::vector<char> data;
  gradwire::bench::serve(arguments[0], "openmpi", rank,
                         {[&](const gradwire::bench::Measurement& what) { data.assign(what.bytes, 0); },
                          [&] { std::memset(data.data(), 0, data.size()); }, [] { MPI_Barrier(MPI_COMM_WORLD); },
                          [&] {
                            MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(data.size()) / element, type, op,
                                          MPI_COMM_WORLD);
                          }});
  MPI_Finalize();
  return 0;
}
