// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The headers of libtorch that many sources above the line need, compiled once. Sources still include what they use;
// this file only makes that cheap. Not torch/torch.h: GCC instantiates, in every source, whatever templates a
// precompiled header left to be instantiated: for all of torch that is twice as much (5.6 s instead of 2.9 s for an
// empty source). Sources that need all of torch have whole_torch_pch.h.
#pragma once
#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <torch/csrc/autograd/function.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>
