// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <filesystem>
#include <utility>

#include "core/error.hpp"
#include "data/cifar10_files.hpp"
#include "data/image_dataset.hpp"
#include "data/packed_images.hpp"
#include "data/sample_file.hpp"
#include "data/subset.hpp"
#include "data/synthetic_images.hpp"

namespace holdfast::data {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t default_num_synthetic = 2048;

std::int64_t num_synthetic(std::string_view spec) {
    std::string_view const prefix = "synthetic:";
    if (!spec.starts_with(prefix)) return default_num_synthetic;
    std::string_view const digits = spec.substr(prefix.size());
    std::int64_t count = 0;
    auto const result = std::from_chars(digits.data(), digits.data() + digits.size(), count);
    require(result.ec == std::errc{} && result.ptr == digits.data() + digits.size() && count >= 1,
            ExitCode::do_not_requeue,
            "--data {} (the part after the colon is the number of training images, at least 1)", spec);
    return count;
}

TrainAndTest open_whole(std::string const& spec) {
    if (spec == "synthetic" || spec.starts_with("synthetic:")) return synthetic_datasets(num_synthetic(spec));
    if (spec == "sample") return open_packed_images(find_sample_file());
    std::error_code error;
    fs::file_status const status = fs::status(spec, error);
    require(status.type() != fs::file_type::none, ExitCode::do_not_requeue, "cannot inspect --data {}: {}",
            spec, error.message());
    require(status.type() != fs::file_type::not_found, ExitCode::do_not_requeue,
            "--data {} does not exist; give a folder with CIFAR-10's binary files, a packed .h5 file, "
            "'sample' or "
            "'synthetic'",
            spec);
    if (status.type() == fs::file_type::directory) return open_cifar10(spec);
    std::string_view const name = spec;
    for (char const* const ending : {".tar.gz", ".tgz", ".tar"}) {
        require(!name.ends_with(ending), ExitCode::do_not_requeue,
                "--data {} is an archive; unpack it with tar -xf and give the folder", spec);
    }
    require(!name.ends_with(".bin"), ExitCode::do_not_requeue,
            "--data {} is one of the six files of CIFAR-10; give the folder they are in", spec);
    return open_packed_images(spec);
}

std::unique_ptr<ImageDataset> limited(std::unique_ptr<ImageDataset> dataset, std::int64_t limit,
                                      char const* option) {
    require(limit >= 0, ExitCode::do_not_requeue, "{} {} (a number of samples, 0 for all)", option, limit);
    return limit == 0 ? std::move(dataset) : first_samples(std::move(dataset), limit);
}

}  // namespace

TrainAndTest open_datasets(std::string const& spec, std::int64_t limit_train, std::int64_t limit_test) {
    TrainAndTest whole = open_whole(spec);
    return {limited(std::move(whole.train), limit_train, "--limit-train"),
            limited(std::move(whole.test), limit_test, "--limit-test")};
}

}  // namespace holdfast::data
