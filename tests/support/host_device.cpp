// SPDX-License-Identifier: Apache-2.0
// The whole program with what a GPU runs, in host memory: for `--device cuda` the linker puts this in the place of
// commands::collective_start_device (-Wl,--wrap). Gradients are written at once, as LibTorch computes on CPUs, but the streams of
// exchange and saves do their work only when somebody waits for it; libnccl is the stand-in.
#include "commands/launch_device.hpp"
#include "cuda/deferred_host_streams.hpp"

namespace commands = holdfast::commands;

using Communicator = holdfast::parallel::Communicator;
using Settings = holdfast::train::Settings;
using CudaGraphs = holdfast::train::CudaGraphs;

#define START_DEVICE                                                                               \
    "_ZN8holdfast8commands23collective_start_deviceERKNS_8parallel12CommunicatorERKNS_5train8Sett" \
    "ingsENS5_10CudaGraphsE"
extern "C++" {
commands::LaunchDevice real_start_device(Communicator const&, Settings const&,
                                         CudaGraphs) __asm__("__real_" START_DEVICE);
commands::LaunchDevice start_device(Communicator const&, Settings const&,
                                    CudaGraphs) __asm__("__wrap_" START_DEVICE);
}

commands::LaunchDevice start_device(Communicator const& world, Settings const& settings, CudaGraphs graphs) {
    if (settings.device != "cuda") return real_start_device(world, settings, graphs);
    commands::LaunchDevice device;
    device.description = "host memory";
    device.stream = std::make_unique<holdfast::cuda::Stream>();
    device.compute.stream = device.stream.get();
    static holdfast::cuda::DeferredHostStreams const of_streams_from_now_on;
    return device;
}
