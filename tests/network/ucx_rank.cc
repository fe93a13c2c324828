// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A rank of the backend ucx: ucx_rank RANK SIZE HOST PORT [wait]. Rank 0 runs the store. Prints the sum of an
// all-reduce; with "wait" it goes on reducing until it fails. Prints the kind of an error, its ranks and its text.
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/backend/registry.h"
#include "gradwire/base/environment.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/store/secret.h"
#include "gradwire/store/tcp_store.h"

namespace {

using namespace gradwire;

void run(int rank, int size, const std::string& host, int port, bool waits) {
  TcpStoreOptions options;
  options.host = host;
  options.port = static_cast<std::uint16_t>(port);
  options.is_server = rank == 0;
  options.world_size = size;
  options.wait_for_workers = false;
  options.timeout = std::chrono::seconds(60);
  options.secret = secret_from_environment([](const char* name) { return environment(name); });
  const auto store = std::make_shared<TcpStore>(options);
  {
    const auto backend = make_backend(
        "ucx", {std::make_shared<PrefixStore>("ucx", store), rank, size, Milliseconds(std::chrono::seconds(20))});
    std::vector<float> data(1'000'000, static_cast<float>(rank + 1));
    do {
      std::fill(data.begin(), data.end(), static_cast<float>(rank + 1));
      backend->channel().all_reduce(data.data(), data.size(), DType::f32, ReduceOp::sum(),
                                    {.deadline = Deadline::after(std::chrono::seconds(60)), .tag = {}});
      static const bool said = [&] {
        std::printf("rank %d of %d: sum %g\n", rank, size, static_cast<double>(data[999'999]));
        std::fflush(stdout);
        return true;
      }();
      static_cast<void>(said);
    } while (waits);
  }
  // The store goes last.
  store->add("done", 1);
  while (rank == 0 && store->add("done", 0) < size) {
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  try {
    run(std::stoi(argv[1]), std::stoi(argv[2]), argv[3], std::stoi(argv[4]), argc > 5);
    return 0;
  } catch (const gradwire::PeerError& error) {
    std::printf("PeerError [%s] %s\n", gradwire::join(error.peers()).c_str(), error.what());
  } catch (const gradwire::TimeoutError& error) {
    std::printf("TimeoutError [%s] %s\n", gradwire::join(error.peers()).c_str(), error.what());
  } catch (const std::exception& error) {
    std::printf("%s\n", gradwire::describe(error).c_str());
  }
  return 1;
}
