// SPDX-License-Identifier: Apache-2.0
#include "commands/launch_device.hpp"

#include <sstream>

#include <fmt/ranges.h>

#include "core/error.hpp"
#include "core/log.hpp"
#include "parallel/nccl_communicator.hpp"
#include "train/torch_on_gpu.hpp"
#include "train/training_engine.hpp"

namespace holdfast::commands {

std::vector<RankView> collective_gpu_views(parallel::Communicator const& world) {
    parallel::GpuView const mine = parallel::gpu_view(cuda::visible_device_uuids());
    std::vector<RankView> views;
    for (std::string const& text : world.all_gather(
             fmt::format("{} {:d} {}", world.host(), mine.expects_one, fmt::join(mine.uuids, " ")))) {
        std::istringstream words(text);
        RankView view;
        words >> view.host >> view.gpus.expects_one;
        for (std::string uuid; words >> uuid;) view.gpus.uuids.push_back(uuid);
        views.push_back(std::move(view));
    }
    return views;
}

std::string collective_resolve_device(parallel::Communicator const& world, std::string const& wanted) {
    if (wanted != "auto") return wanted;
    std::vector<parallel::GpuView> all;
    bool expects_one = false;
    for (RankView const& view : collective_gpu_views(world)) {
        all.push_back(view.gpus);
        expects_one = expects_one || view.gpus.expects_one;
    }
    if (!cuda::supports_gpus()) {
        if (expects_one)
            log::warning(
                "there are GPUs here, but this Holdfast was built without CUDA: it trains on CPUs; build "
                "it where nvcc is, with scripts/quickstart or -DHOLDFAST_WITH_CUDA=ON");
        return "cpu";
    }
    bool use_gpus = false;
    world.agree([&] { use_gpus = parallel::chooses_gpus(all); });
    return use_gpus ? "cuda" : "cpu";
}

LaunchDevice collective_start_device(parallel::Communicator const& world, train::Settings const& settings,
                                     train::CudaGraphs graphs) {
    LaunchDevice device;
    if (settings.device == "cpu") {
        world.agree([&] {
            train::require_possible_on_cpus(settings, ExitCode::do_not_requeue);
            require(graphs != train::CudaGraphs::on, ExitCode::do_not_requeue,
                    "--cuda-graph on is for GPUs, and this run is on CPUs; leave it away");
        });
        return device;
    }
    std::vector<RankView> const views = collective_gpu_views(world);
    world.agree([&] {
        require(cuda::supports_gpus(), ExitCode::do_not_requeue,
                "--device cuda: this Holdfast was built without CUDA; build it where nvcc is, with "
                "scripts/quickstart or -DHOLDFAST_WITH_CUDA=ON, or use --device cpu");
        std::vector<std::vector<std::string>> uuids_of_host;
        std::size_t num_seen = 0;
        for (RankView const& view : views) {
            num_seen += view.gpus.uuids.size();
            if (view.host == world.host()) uuids_of_host.push_back(view.gpus.uuids);
        }
        require(num_seen > 0, ExitCode::do_not_requeue,
                "--device cuda: no rank sees a GPU (no NVIDIA driver, none given to the job, or hidden by "
                "CUDA_VISIBLE_DEVICES); see nvidia-smi, or use --device cpu");
        int const gpu = parallel::assign_device(world.local_rank(), uuids_of_host);
        cuda::use_device(gpu);
        train::Precision const precision = train::precision_of(settings);
        train::start_torch_on_gpu(gpu, train::reduction_of(settings), precision);
        parallel::require_nccl_as_built();
        device.stream = std::make_unique<cuda::Stream>();
        device.compute = {.stream = device.stream.get(),
                          .gpu = gpu,
                          .precision = precision,
                          .layout = train::Layout::nhwc,
                          .graphs = graphs};
        device.description = fmt::format("GPU {} ({})", gpu, cuda::device_name(gpu));
    });
    return device;
}

std::int64_t default_threads(train::Settings const& settings, parallel::LaunchTable const& table) {
    return settings.device == "cuda" ? 1 : table.default_threads_per_replica();  // on a GPU only its feeder
}

}  // namespace holdfast::commands
