// SPDX-License-Identifier: Apache-2.0
// holdfast pack: a data set as one HDF5 file of JPEGs.
#include <filesystem>
#include <memory>

#include <CLI/CLI.hpp>

#include "commands/commands.hpp"
#include "commands/number_flag.hpp"
#include "core/error.hpp"
#include "core/log.hpp"
#include "data/image_dataset.hpp"
#include "data/packed_images.hpp"
#include "data/subset.hpp"

namespace holdfast::commands {

Action add_pack(CLI::App& app) {
    struct Options {
        std::string source;
        std::string out;
        int quality = 75;
        std::int64_t train_per_class = 0;
        std::int64_t test_per_class = 0;
    };
    auto const options = std::make_shared<Options>();
    CLI::App* const command = app.add_subcommand("pack", "Pack a data set into one HDF5 file of JPEGs");
    command
        ->add_option("source", options->source,
                     "As train --data: CIFAR-10 folder, .h5 file, 'sample', 'synthetic[:N]'")
        ->type_name("DATA")
        ->required();
    command->add_option("out", options->out, "The file to write, OUT.h5")->type_name("FILE")->required();
    whole_number(command->add_option("--quality", options->quality, "JPEG quality")->capture_default_str(), 1,
                 100);
    whole_number(command->add_option("--train-per-class", options->train_per_class,
                                     "Only the first N training images of each class (0: all)"),
                 0);
    whole_number(command->add_option("--test-per-class", options->test_per_class,
                                     "Only the first N test images of each class (0: all)"),
                 0);
    return [options](Arguments&) {
        // A rename would replace a device or pipe by a file, and checkpoints are never to be overwritten.
        require(!std::filesystem::exists(std::filesystem::symlink_status(options->out)),
                ExitCode::do_not_requeue,
                "{} exists already (it would be replaced); remove it or choose another name", options->out);
        data::TrainAndTest sets = data::open_datasets(options->source, 0, 0);
        if (options->train_per_class > 0)
            sets.train = data::balanced_subset(std::move(sets.train), options->train_per_class);
        if (options->test_per_class > 0)
            sets.test = data::balanced_subset(std::move(sets.test), options->test_per_class);
        data::pack_images(*sets.train, *sets.test, options->out, options->quality);
        log::info("{}: {} training and {} test images, {} bytes", options->out, sets.train->size(),
                  sets.test->size(), std::filesystem::file_size(options->out));
        return ExitCode::finished;
    };
}

}  // namespace holdfast::commands
