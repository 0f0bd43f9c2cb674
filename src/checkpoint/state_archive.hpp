// SPDX-License-Identifier: Apache-2.0
// One description of a run's state for declaring, saving, loading and digesting it: the state has a single
// visit(StateArchive&), and each operation is an implementation of this interface. So writer and reader cannot drift apart.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace holdfast::checkpoint {

class StateArchive {
  public:
    virtual ~StateArchive() = default;
    /// `path` is absolute inside the file, e.g. "/progress/step".
    virtual void field(std::string_view path, std::int64_t& value) = 0;
    virtual void field(std::string_view path, double& value) = 0;
    virtual void field(std::string_view path, std::string& text) = 0;  ///< UTF-8, stored as u8[length]
    virtual void field(std::string_view path, std::span<float> values,
                       std::vector<std::int64_t> const& shape) = 0;
    virtual void field(std::string_view path, std::span<std::int64_t> values,
                       std::vector<std::int64_t> const& shape) = 0;
    virtual void field(std::string_view path, std::span<double> values,
                       std::vector<std::int64_t> const& shape) = 0;
};

}  // namespace holdfast::checkpoint
