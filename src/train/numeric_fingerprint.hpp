// SPDX-License-Identifier: Apache-2.0
// What a run's bits depend on besides its settings: the numeric platform. Kernels differ by instruction set, cache size and
// library version, so the promise of equal bits holds on one platform, and this is how another one is noticed.
#pragma once

#include <string>

#include "train/compute_device.hpp"

namespace holdfast::train {

/// JSON of torch version, what computes (CPU capability and `threads`, or the GPU's model and cuDNN) and the digest of the
/// gradient of one small fixed batch, computed there.
std::string numeric_fingerprint(int threads, ComputeDevice device = {});

/// Version of the LibTorch this program was compiled with, "2.15.0".
std::string torch_version();
/// Version the loaded LibTorch says it has, or "unknown".
std::string torch_version_loaded();
/// ATen's name of the instruction set it computes with, "AVX512".
std::string cpu_capability();

}  // namespace holdfast::train
