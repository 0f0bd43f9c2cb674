// SPDX-License-Identifier: Apache-2.0
// The first weights of a run: those that Python gives after
//   torch.manual_seed(seed); model = torchvision.models.resnet34(num_classes=10)
//   model.conv1 = nn.Conv2d(3, 64, 3, stride=2, padding=1, bias=False)
// bit for bit, drawn from a generator of their own.
#pragma once

#include <cstdint>
#include <span>

#include "model/resnet.hpp"

namespace holdfast::model {

/// Fills `parameters` (layout.num_parameter_floats() elements; padding becomes 0).
void initialize_parameters(ResNet const& network, std::uint64_t seed, std::span<float> parameters);

}  // namespace holdfast::model
