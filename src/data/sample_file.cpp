// SPDX-License-Identifier: Apache-2.0
#include "data/sample_file.hpp"

#include <cstdlib>

#include "core/error.hpp"

namespace holdfast::data {

std::filesystem::path find_sample_file(std::filesystem::path const& program) {
    namespace fs = std::filesystem;
    std::error_code error;
    if (char const* const given = std::getenv("HOLDFAST_SAMPLE"); given != nullptr) {
        require(fs::exists(given, error), ExitCode::do_not_requeue,
                "HOLDFAST_SAMPLE is '{}', which does not exist; correct or unset it", given);
        return given;
    }
    fs::path const installed =
        fs::weakly_canonical(program, error).parent_path().parent_path() / "share/holdfast/cifar10-sample.h5";
    fs::path const in_source_tree = HOLDFAST_SAMPLE_IN_SOURCE_TREE;
    for (fs::path const& candidate : {installed, in_source_tree}) {
        if (fs::exists(candidate, error)) return candidate;
    }
    fail(ExitCode::do_not_requeue,
         "the image set that comes with Holdfast is neither {} nor {}; set HOLDFAST_SAMPLE to the path of "
         "cifar10-sample.h5",
         installed.string(), in_source_tree.string());
}

}  // namespace holdfast::data
