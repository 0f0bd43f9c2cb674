// SPDX-License-Identifier: Apache-2.0
// holdfast info: versions of everything the program stands on, and what it can do on this machine.
#include <filesystem>
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "commands/commands.hpp"
#include "commands/version.hpp"
#include "core/error.hpp"
#include "core/json_text.hpp"
#include "cuda/device_runtime.hpp"
#include "data/sample_file.hpp"
#include "hdf5/image_file.hpp"
#include "parallel/device_assignment.hpp"
#include "parallel/library_versions.hpp"
#include "train/numeric_fingerprint.hpp"
#include "train/torch_on_gpu.hpp"

namespace holdfast::commands {

namespace {

std::string sample_file() try { return data::find_sample_file().string(); } catch (Error const& error) {
    return error.what();
}

}  // namespace

std::string version_line() { return "holdfast " HOLDFAST_VERSION; }

std::string stack_versions() {
    nlohmann::ordered_json json;
    json["holdfast"] = HOLDFAST_VERSION;
    json["libtorch"] = train::torch_version();
    json["cpu_capability"] = train::cpu_capability();
    json["mpi"] = parallel::mpi_version();
    json["hdf5"] = hdf5::library_version();
    json["cuda"] = cuda::supports_gpus() ? cuda::runtime_name() : "none";
    try {
        json["nccl_built"] = parallel::nccl_version_built();
        json["nccl_loaded"] = parallel::nccl_version_loaded();
    } catch (Error const& error) {  // a program for GPUs, where there is no NCCL
        json["nccl_loaded"] = error.what();
    }
    return json.dump();
}

Action add_info(CLI::App& app) {
    auto const as_json = std::make_shared<bool>(false);
    CLI::App* const command = app.add_subcommand("info", "Show versions and what this machine offers");
    command->add_flag("--json", *as_json, "As JSON");
    return [as_json](Arguments&) {
        auto json = nlohmann::ordered_json::parse(stack_versions());
        json["program"] = std::filesystem::canonical("/proc/self/exe").string();
        json["sample"] = sample_file();
        json["libtorch_file"] = (train::torch_library_folder() / "libtorch_cpu.so").string();
        json["gpus"] = nlohmann::ordered_json::array();
        std::size_t const num_gpus = cuda::visible_device_uuids().size();
        for (std::size_t gpu = 0; gpu < num_gpus; ++gpu)
            json["gpus"].push_back(cuda::device_name(static_cast<int>(gpu)));
        json["cores_usable"] = parallel::affinity_cores().size();
        json["cores_machine"] = parallel::num_machine_cores();
        json["fingerprint"] = nlohmann::ordered_json::parse(train::numeric_fingerprint(1));
        if (*as_json) {
            std::cout << json_text(json) << '\n';
        } else {
            for (auto const& [key, value] : json.items())
                std::cout << fmt::format("{:<16} {}\n", key,
                                         value.is_string() ? value.get<std::string>() : value.dump());
        }
        return ExitCode::finished;
    };
}

}  // namespace holdfast::commands
