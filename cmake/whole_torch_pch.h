// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// All of libtorch, compiled once, for programs that include torch/torch.h. Such a source takes 7 s instead of 13 s.
#pragma once
#include <torch/torch.h>
