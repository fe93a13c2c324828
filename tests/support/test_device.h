// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The device on which tests run that any device can serve: the fake one (fake_device.h), or a GPU where
// GRADWIRE_TEST_DEVICE=cuda is in the environment, as scripts/gpu_check.py sets it. Tests that look into the fake
// device run on it alone.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <optional>
#include <string>

namespace gradwire::testing {

// Whether the tests run on a GPU. Throws InvalidArgument for any other value of the variable.
bool on_gpu();

// How many ranks may have a device of their own: the GPUs of the machine, or kFakeDevices.
int device_count();

// The device of `rank`: the one of that number; GPUs are shared where there are fewer of them.
c10::Device test_device(int rank);

// The races that the fake device has found so far, one a line; clears the list. Empty on a GPU, which finds none.
std::string races();

// The bytes that copies have brought from the fake device to the host since the last call; nothing on a GPU, which does
// not count.
std::optional<std::size_t> take_bytes_to_host();

// The stream that is current for `device` on this thread, and a new one.
c10::Stream current_stream(const c10::Device& device);
c10::Stream new_stream(const c10::Device& device);

}  // namespace gradwire::testing
