// SPDX-License-Identifier: Apache-2.0
#include "train/replica_check.hpp"

#include <fmt/format.h>

#include "core/digest.hpp"
#include "core/error.hpp"
#include "parallel/rank_difference.hpp"

namespace holdfast::train {

std::string replica_digests(StateTensors const& tensors) {
    auto const digest = [](std::span<float const> values) { return digest_of(std::as_bytes(values)).hex(); };
    std::string text;
    for (auto const& [name, values] : tensors.parts()) text += fmt::format("{} {}\n", name, digest(values));
    return text;
}

void collective_check_replicas(parallel::Communicator const& communicator, RunState const& state,
                               std::string const& state_digests, std::int64_t saved_step,
                               data::ImageDataset const& train_set, data::ImageDataset const& test_set) {
    std::string const advice = fmt::format(
        "nothing of it was saved, the checkpoint of step {} is good; check that host's memory, disk and "
        "network, and "
        "go on without it",
        saved_step);
    std::string const difference = parallel::collective_difference(communicator, state_digests);
    if (!difference.empty())
        throw AgreedError(
            ExitCode::do_not_requeue,
            fmt::format("step {}: the ranks' copies of the state differ (a bit has changed by itself): "
                        "{}; {}",
                        state.step, difference, advice));
    communicator.agree([&] {
        std::string const digest = data::digest_of(train_set, test_set).hex();
        require(
            digest == state.settings.data_digest, ExitCode::do_not_requeue,
            "step {}: the data have changed under the run (pixels and labels have digest {} now, had {} when "
            "it began); {}",
            state.step, digest, state.settings.data_digest, advice);
    });
}

}  // namespace holdfast::train
