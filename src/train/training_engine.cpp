// SPDX-License-Identifier: Apache-2.0
#include "train/training_engine.hpp"

#include <algorithm>
#include <unistd.h>

#include <fmt/ranges.h>

#include "core/error.hpp"
#include "model/resnet_initialization.hpp"
#include "train/compute_thread.hpp"
#include "train/device_training_step.hpp"

namespace holdfast::train {
namespace {

std::size_t state_floats(model::FlatLayout const& layout, Averages averages) {
    return StateTensors::num_floats(layout, averages) + model::FlatLayout::tail_size;
}

/// Bytes of the state that the ranks of a host share. Refuses a network that the host cannot hold: the allocation would fail
/// with a word about shared memory, or succeed and get a rank killed.
std::size_t collective_check_size(parallel::Communicator const& communicator, Settings const& settings,
                                  model::FlatLayout const& layout) {
    std::size_t const state_bytes = state_floats(layout, averages_of(settings)) * sizeof(float);
    communicator.agree([&] {
        std::size_t const gradients = static_cast<std::size_t>(communicator.local_size());
        double const needed = static_cast<double>(state_bytes) + static_cast<double>(layout.num_floats) *
                                                                     static_cast<double>(gradients) *
                                                                     sizeof(float);
        double const memory =
            static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
        require(
            needed <= memory, ExitCode::do_not_requeue,
            "--width {} gives {} {} parameters (with momentum and one gradient per rank they take at least "
            "{:.1f} GB of each host's memory, and this host has {:.1f} GB); lower --width",
            settings.width, settings.model, layout.num_parameters(), needed / 1e9, memory / 1e9);
    });
    return state_bytes;
}

}  // namespace

int replica_slots(parallel::LaunchTable const& table, int threads_per_replica) {
    int slots = 1 << 30;
    int most_replicas = 1;
    for (parallel::LaunchRow const& row : table.rows) {
        int const ranks_of_host = static_cast<int>(std::count_if(
            table.rows.begin(), table.rows.end(), [&](auto const& other) { return other.host == row.host; }));
        int const share = table.num_cores_of_host(row.host) / ranks_of_host;
        int const cores = std::min(share, static_cast<int>(row.cores.size()));
        slots = std::min(slots, cores / threads_per_replica);
        most_replicas = std::max(most_replicas, row.replicas.size());
    }
    return std::clamp(slots, 1, most_replicas);
}

model::ResNetConfig network_config(Settings const& settings, data::ImageDataset const& dataset) {
    return {settings.model == "resnet18" ? 18 : 34, static_cast<int>(settings.width),
            static_cast<int>(dataset.class_names().size()), dataset.shape().channels};
}

data::Tail tail_of(Settings const& settings) {
    return settings.tail == "pad" ? data::Tail::pad : data::Tail::exact;
}

parallel::Reduction reduction_of(Settings const& settings) {
    return settings.reduction == "fast" ? parallel::Reduction::fast : parallel::Reduction::exact;
}

Precision precision_of(Settings const& settings) {
    auto const found = std::find(precision_names.begin(), precision_names.end(), settings.precision);
    require(found != precision_names.end(), ExitCode::do_not_requeue,
            "precision '{}' is not one of {} (the run may be of a newer Holdfast)", settings.precision,
            fmt::join(precision_names, ", "));
    return static_cast<Precision>(found - precision_names.begin());
}

data::LoaderPlan loader_plan(Settings const& settings, parallel::ReplicaRange replicas,
                             std::int64_t first_step, std::int64_t end_step) {
    data::LoaderPlan plan;
    plan.seed = static_cast<std::uint64_t>(settings.seed);
    plan.num_replicas = static_cast<int>(settings.replicas);
    plan.batch_size = settings.batch_size;
    plan.tail = tail_of(settings);
    plan.first_replica = replicas.begin;
    plan.end_replica = replicas.end;
    plan.first_step = first_step;
    plan.end_step = end_step;
    plan.augmentation =
        settings.augment == "crop-flip" ? data::Augmentation::crop_flip : data::Augmentation::none;
    return plan;
}

TrainingEngine::TrainingEngine(parallel::Communicator const& communicator, Settings const& settings,
                               model::ResNetConfig const& config, parallel::LaunchTable const& table,
                               ComputeDevice device)
    : device_(device),
      replicas_(parallel::replica_range(communicator.rank(), communicator.size(),
                                        static_cast<int>(settings.replicas))),
      network_(model::make_resnet(config)),
      memory_(parallel::HostSharedMemory::collective_allocate(
          communicator, collective_check_size(communicator, settings, network_.layout))),
      tensors_(StateTensors::in(memory_.floats(), network_.layout, averages_of(settings))) {
    Averages const averages = averages_of(settings);
    std::size_t const num_floats = StateTensors::num_floats(network_.layout, averages);
    int const threads = static_cast<int>(settings.threads);
    int const num_slots = device.has_device_memory() ? 1 : replica_slots(table, threads);
    exchange_ = parallel::collective_make_exchange(
        communicator, {static_cast<int>(settings.replicas), network_.layout.num_floats, num_slots,
                       reduction_of(settings), device.stream, network_.layout.decaying_end});
    StateTensors where_computed = tensors_;
    communicator.agree([&] {
        if (device.has_device_memory()) {
            device_memory_ = cuda::DeviceFloats(num_floats);
            where_computed =
                StateTensors::in({device_memory_.data(), device_memory_.size()}, network_.layout, averages);
        }
        slots_ = std::make_unique<ReplicaSlots>(network_, where_computed,
                                                std::min(num_slots, replicas_.size()), threads, device,
                                                settings.label_smoothing, exchange_->early_parts());
    });
    if (device.has_device_memory()) {
        training_step_ = std::make_unique<DeviceTrainingStep>(network_.layout, device, where_computed,
                                                              tensors_, *exchange_, *slots_, replicas_.begin);
        return;
    }
    std::span<float> const tail = memory_.floats().subspan(num_floats, model::FlatLayout::tail_size);
    training_step_ = std::make_unique<HostTrainingStep>(network_.layout, tensors_, tail, *exchange_, *slots_,
                                                        replicas_.begin);
}

std::unique_ptr<StateSnapshot> TrainingEngine::make_snapshot() const {
    if (!device_.has_device_memory()) return nullptr;
    return std::make_unique<StateSnapshot>(
        network_.layout, tensors_.averages(), device_,
        std::span<float const>(device_memory_.data(), device_memory_.size()));
}

std::unique_ptr<data::DeviceImages> TrainingEngine::make_device_images(
    data::ImageDataset const& dataset, data::DeviceImages::Plan const& plan) const {
    if (!device_.has_device_memory()) return nullptr;
    return std::make_unique<data::DeviceImages>(dataset, data::cifar10_normalization(), plan, device_.gpu);
}

void TrainingEngine::initialize(parallel::Communicator const& communicator, std::uint64_t seed) {
    if (communicator.local_rank() == 0) {
        model::initialize_parameters(network_, seed, tensors_.parameters);
        std::fill(tensors_.momentum.begin(), tensors_.momentum.end(), 0.0f);
        std::fill(tensors_.statistics.begin(), tensors_.statistics.end(), 0.0f);
        for (model::FlatTensor const& tensor : network_.layout.running_variances) {
            auto const variances =
                tensors_.statistics.subspan(tensor.offset - network_.layout.means_begin, tensor.size);
            std::fill(variances.begin(), variances.end(), 1.0f);
        }
        tensors_.restart_averages();
    }
    communicator.barrier_host();
    training_step_->load_state();
}

}  // namespace holdfast::train
