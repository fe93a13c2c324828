// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A rank without torch: meets the others in the store that GRADWIRE_RENDEZVOUS names, adds its number to a sum, waits
// for all, prints the sum. With the argument "wait" it goes on adding until it is stopped.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/environment.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/store/secret.h"
#include "gradwire/store/tcp_store.h"

namespace {

std::string variable(const char* name) { return gradwire::environment(name).value_or(""); }

// "tcp://host:port?hosted=1&prefix=place"
std::shared_ptr<gradwire::Store> meet(const std::string& rendezvous) {
  const std::string address = rendezvous.substr(6, rendezvous.find('?') - 6);
  const auto colon = address.rfind(':');
  gradwire::TcpStoreOptions options;
  options.host = address.substr(0, colon);
  options.port = static_cast<std::uint16_t>(std::stoi(address.substr(colon + 1)));
  options.secret = gradwire::secret_from_environment([](const char* name) { return gradwire::environment(name); });
  return std::make_shared<gradwire::PrefixStore>(rendezvous.substr(rendezvous.rfind('=') + 1),
                                                 std::make_shared<gradwire::TcpStore>(options));
}

int run(bool wait) {
  const auto store = meet(variable("GRADWIRE_RENDEZVOUS"));
  const int rank = std::stoi(variable("RANK"));
  const int world = std::stoi(variable("WORLD_SIZE"));
  store->add("sum", rank + 1);
  store->set("there/" + std::to_string(rank), "");
  std::vector<std::string> all;
  for (int other = 0; other < world; ++other) all.push_back("there/" + std::to_string(other));
  store->wait(all);
  char host[256] = {};
  ::gethostname(host, sizeof(host) - 1);
  std::printf("rank %d of %d on %s, attempt %s: sum %s\n", rank, world, host, variable("GRADWIRE_ATTEMPT").c_str(),
              store->get("sum").c_str());
  std::fflush(stdout);
  while (wait) store->wait(std::vector<std::string>{"a key that never comes"});
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 && std::string(argv[1]) == "wait");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
