// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The store where the members and the coordinator of an elastic job meet.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "gradwire/store/store.h"

namespace gradwire::membership {

// Opens the store at `place`: "tcp://HOST:PORT" (a server that runs; the secret comes from GRADWIRE_SECRET_FILE or
// GRADWIRE_SECRET), or the path of a file, which is made when it is missing. Throws StoreError and TimeoutError when it
// cannot be opened; InvalidArgument for a place or a secret that makes no sense. `patience`: how long a call waits for
// a server that is gone (PatientStore), once the store is open.
std::shared_ptr<Store> open_job_store(const std::string& place, Milliseconds patience = Milliseconds(0));

// The part of `whole` that open_job_store() gives: the keys of docs/format/membership.md.
std::shared_ptr<Store> job_part(std::shared_ptr<Store> whole);
// The key of `whole` that is `key` in that part.
std::string key_in_whole(const std::string& key);

// The name of the job's store (kStoreKey): another one when the job has got another store. Empty where it has none.
// Throws what the store throws.
std::string name_of_job_store(Store& job);

// "tcp://HOST:PORT", the place of the store that is served at that address (host_and_port()).
std::string job_place(const std::string& host, std::uint16_t port);

}  // namespace gradwire::membership
