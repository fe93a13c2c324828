// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The headers of libtorch that nearly every source above the line needs, compiled once. Sources still include what they
// use; this file only makes that cheap.
#pragma once
#include <torch/torch.h>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
