// SPDX-License-Identifier: Apache-2.0
// Where every tensor lies in the flat float32 buffers. Parameters, momentum and gradients are one buffer each, so that a step
// needs one exchange and one optimizer pass; module parameters are views into them.
//
// A gradient buffer is [parameters | running means | running variances | tail]; parameter and momentum buffers are its first
// part, the running statistics its middle. Of the parameters those that weight decay is for come first, so that they are one
// range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace holdfast::model {

struct FlatTensor {
    std::string name;  ///< torchvision's, e.g. "layer1.0.conv1.weight"
    std::vector<std::int64_t> shape;
    std::size_t offset = 0;  ///< floats from the start of the gradient buffer; a multiple of 16 (64 bytes)
    std::size_t size = 0;    ///< floats
};

struct FlatLayout {
    /// Floats after the statistics that carry the step's metrics and flags through the same exchange.
    static constexpr std::size_t tail_size = 16;

    std::vector<FlatTensor> parameters;
    std::vector<FlatTensor> running_means;
    std::vector<FlatTensor> running_variances;
    std::size_t decaying_end =
        0;  ///< weights of convolutions and linear layers end, BatchNorm's and biases begin
    std::size_t means_begin = 0;  ///< also the padded number of parameter floats
    std::size_t variances_begin = 0;
    std::size_t tail_begin = 0;
    std::size_t num_floats = 0;  ///< of a gradient buffer; a multiple of 16

    std::size_t num_parameter_floats() const { return means_begin; }
    std::size_t num_statistics_floats() const { return tail_begin - means_begin; }
    /// Elements of all parameters, without padding.
    std::int64_t num_parameters() const;
};

/// Names and shapes in torchvision's order; the statistics belong to BatchNorm layers in forward order.
FlatLayout make_flat_layout(std::vector<FlatTensor> parameters, std::vector<FlatTensor> running_means,
                            std::vector<FlatTensor> running_variances);

}  // namespace holdfast::model
