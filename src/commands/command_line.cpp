// SPDX-License-Identifier: Apache-2.0
#include "commands/command_line.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "commands/commands.hpp"
#include "commands/version.hpp"
#include "core/error.hpp"

namespace holdfast::commands {
namespace {

constexpr std::string_view variable_prefix = "HOLDFAST_";

/// The flags a person may set: all long names but help.
std::vector<CLI::Option*> flags_of(CLI::App& command) {
    return command.get_options([](CLI::Option const* option) {
        return !option->get_lnames().empty() && option->get_lnames().front() != "help";
    });
}

std::string environment_name(std::string const& flag) {
    std::string name(variable_prefix);
    for (char const c : flag)
        name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return name;
}

/// Variables named like ours that are no flags: of the program's data, the scripts, the build and the tests.
constexpr std::string_view other_variables[] = {
    "HOLDFAST_CIFAR10",  "HOLDFAST_CIFAR10_SHA256", "HOLDFAST_CIFAR10_URL", "HOLDFAST_END_TIME",
    "HOLDFAST_LAUNCHER", "HOLDFAST_MODULE",         "HOLDFAST_PYTHON",      "HOLDFAST_ROOT",
    "HOLDFAST_SAMPLE",   "HOLDFAST_SUPERVISED_BY",  "HOLDFAST_TORCH"};

bool is_named_by_variable(CLI::Option const& config) {
    char const* const path = std::getenv(config.get_envname().c_str());
    return path != nullptr && path == config.as<std::string>();
}

/// All commands that read a file, of which `command` is one.
std::vector<CLI::App*> commands_with_a_file(CLI::App& command) {
    return command.get_parent()->get_subcommands(
        [](CLI::App* other) { return other->get_option_no_throw("--config") != nullptr; });
}

/// Insertions, deletions and replacements that turn one into the other (Levenshtein's distance).
std::size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (char const letter : a) {
        std::size_t diagonal = row[0]++;
        for (std::size_t j = 0; j < b.size(); ++j) {
            std::size_t const replaced = diagonal + (letter == b[j] ? 0 : 1);
            diagonal = row[j + 1];
            row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
        }
    }
    return row.back();
}

/// A launch has many processes but one command line: one of them explains what is wrong with it.
bool speaks_for_the_launch() {
    for (char const* const name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK"})
        if (char const* const rank = std::getenv(name)) return std::string_view(rank) == "0";
    return true;
}

/// A value out of its range is a usage error like any other: all ranks see it, one explains it.
ExitCode run_action(Action const& action, Arguments& arguments) {
    try {
        return action(arguments);
    } catch (AgreedError const&) {
        throw;
    } catch (Error const& error) {
        if (error.code() != ExitCode::usage) throw;
        if (speaks_for_the_launch()) std::cerr << "error: " << error.what() << '\n';
        return ExitCode::usage;
    }
}

/// Throws Error(usage) for a whole number of any source that has too many digits: CLI11 takes the largest one in its place.
void require_representable(CLI::App& command) {
    for (CLI::Option const* const option : flags_of(command)) {
        if (!option->get_type_name().starts_with(CLI::detail::type_name<std::int64_t>())) continue;
        for (std::string const& text : option->results()) {
            errno = 0;
            std::strtoll(text.c_str(), nullptr, 0);
            require(errno != ERANGE, ExitCode::usage, "--{} is {}, must fit 64 bits",
                    option->get_lnames().front(), text);
        }
    }
}

/// The commands with what each does.
struct Program {
    CLI::App app{
        "Trains image classifiers under MPI with the same bits on any number of ranks, interrupted or not.",
        "holdfast"};
    std::vector<std::pair<CLI::App*, Action>> commands;
};

std::unique_ptr<Program> make_program() {
    auto program = std::make_unique<Program>();
    CLI::App& app = program->app;
    app.set_version_flag("--version", version_line());
    app.require_subcommand(1);
    app.get_formatter()->column_width(34);
    using Add = Action (*)(CLI::App&);
    for (Add const add : {&add_train, &add_supervise, &add_eval, &add_inspect, &add_verify, &add_replay,
                          &add_pack, &add_info, &add_bench, &add_doctor}) {
        Action action = add(app);
        CLI::App* const command = app.get_subcommands([](CLI::App const*) { return true; }).back();
        if (add != &add_supervise)  // HOLDFAST_CONFIG is for the command that it starts
            command->add_option("--config", "TOML file with flags as keys")
                ->type_name("FILE")
                ->check(CLI::ExistingFile);
        bind_environment(*command);
        program->commands.emplace_back(command, std::move(action));
    }
    return program;
}

/// All arguments, but those of the command that supervise starts: they are another command line.
int own_argc(Arguments const& arguments) {
    std::span const all(arguments.argv, static_cast<std::size_t>(arguments.argc));
    if (all.size() < 2 || std::string_view(all[1]) != "supervise") return arguments.argc;
    return static_cast<int>(std::ranges::find(all, std::string_view("--")) - all.begin());
}

/// What to say after a usage error.
std::string_view advice_for(Arguments const& arguments) {
    bool const lacks_mark = arguments.argc > 1 && std::string_view(arguments.argv[1]) == "supervise" &&
                            own_argc(arguments) == arguments.argc;
    return lacks_mark ? "The command to supervise comes after --, as in: holdfast supervise --np 4 -- train "
                        "--epochs 90"
                      : "Run 'holdfast --help' or 'holdfast COMMAND --help' for the commands and flags.";
}

/// What the command line is good for if no command is to be run: help, a version, a usage error. Prints it.
std::optional<ExitCode> parse(Program& program, Arguments const& arguments) {
    CLI::App& app = program.app;
    try {
        app.parse(own_argc(arguments), arguments.argv);
        require_known_environment(app.get_subcommands([](CLI::App const*) { return true; }));
        for (auto const& [command, action] : program.commands)
            if (command->parsed()) {
                require_given_once(*command);
                apply_config_file(*command);
                require_representable(*command);
            }
    } catch (CLI::ParseError const& error) {
        if (error.get_exit_code() == 0) {  // --help, --version
            if (speaks_for_the_launch()) app.exit(error);
            return ExitCode::finished;
        }
        bool const is_unknown_command =
            arguments.argc > 1 && arguments.argv[1][0] != '-' && app.get_subcommands().empty();
        if (speaks_for_the_launch())
            std::cerr << "error: "
                      << (is_unknown_command ? fmt::format("unknown command '{}'", arguments.argv[1])
                                             : error.what())
                      << '\n'
                      << advice_for(arguments) << '\n';
        return ExitCode::usage;
    } catch (Error const& error) {
        if (speaks_for_the_launch()) std::cerr << "error: " << error.what() << '\n';
        return error.code();
    }
    return std::nullopt;
}

}  // namespace

void bind_environment(CLI::App& command) {
    for (CLI::Option* const option : flags_of(command)) {
        option->envname(environment_name(option->get_lnames().front()));
        option
            ->take_last();  // so that it is this program that says what is wrong with two: require_given_once
    }
}

void require_known_environment(std::vector<CLI::App*> const& commands) {
    std::set<std::string> known(std::begin(other_variables), std::end(other_variables));
    for (CLI::App* const command : commands)
        for (CLI::Option const* const option : flags_of(*command))
            known.insert(environment_name(option->get_lnames().front()));
    for (char** entry = environ; *entry != nullptr; ++entry) {
        std::string_view const text(*entry);
        std::string const name(text.substr(0, text.find('=')));
        if (!name.starts_with(variable_prefix) || name.size() + 1 >= text.size() || known.contains(name))
            continue;
        auto const nearest = std::ranges::min_element(
            known, {}, [&](std::string const& candidate) { return edit_distance(name, candidate); });
        // More than a third of its letters wrong is another word. (Both names begin with the prefix, which says nothing.)
        std::size_t const near = (name.size() - variable_prefix.size() + 2) / 3;
        fail(ExitCode::usage,
             "the environment variable {} means nothing to Holdfast (a misspelt one would be missed); {}",
             name,
             edit_distance(name, *nearest) <= near
                 ? fmt::format("did you mean {}? Otherwise unset it", *nearest)
                 : "unset it");
    }
}

void require_given_once(CLI::App& command) {
    for (CLI::Option const* const option : flags_of(command))
        require(option->count() <= 1, ExitCode::usage, "--{} is given {} times, with {}; give it once",
                option->get_lnames().front(), option->count(), fmt::join(option->results(), " and "));
}

void apply_config_file(CLI::App& command) {
    CLI::Option* const config = command.get_option_no_throw("--config");
    if (config == nullptr || config->count() == 0) return;
    std::string const path = config->as<std::string>();
    std::vector<CLI::App*> readers{&command};
    if (is_named_by_variable(*config)) readers = commands_with_a_file(command);
    std::set<std::string> keys;
    try {
        for (CLI::ConfigItem const& item : CLI::ConfigTOML().from_file(path)) {
            if (item.name == "++" || item.name == "--") continue;  // CLI11's marks of a table's begin and end
            auto const belongs_to = [&](CLI::App const* reader) {
                return item.parents.empty() || item.parents == std::vector{reader->get_name()};
            };
            auto const takes = [&](CLI::App const* reader) {
                return belongs_to(reader) && item.name != "config" &&
                       reader->get_option_no_throw("--" + item.name) != nullptr;
            };
            require(std::ranges::any_of(readers, belongs_to), ExitCode::usage,
                    "{}: unknown table [{}] (tables are named like the command: [{}])", path,
                    item.parents.empty() ? "" : item.parents.front(), command.get_name());
            require(std::ranges::any_of(readers, takes), ExitCode::usage,
                    "{}: unknown key '{}' (keys are the flags of 'holdfast {} --help' without dashes)", path,
                    item.name, command.get_name());
            if (!takes(&command)) continue;
            require(item.inputs.size() == 1, ExitCode::usage, "{}: the key '{}' has {} values; give it one",
                    path, item.name, item.inputs.size());
            require(keys.insert(item.name).second, ExitCode::usage,
                    "{}: the key '{}' is there twice; give it once", path, item.name);
            CLI::Option* const option = command.get_option("--" + item.name);
            if (option->count() > 0) continue;
            option->add_result(item.inputs);
            option->run_callback();
        }
    } catch (CLI::Error const& error) {
        fail(ExitCode::usage, "{}: {}", path, error.what());
    }
}

std::set<std::string> explicitly_given(CLI::App const& command) {
    std::set<std::string> names;
    for (CLI::Option const* const option : command.get_options())
        if (option->count() > 0 && !option->get_lnames().empty()) names.insert(option->get_lnames().front());
    return names;
}

std::string config_text(CLI::App const& command) {
    std::string text;
    for (CLI::Option const* const option : command.get_options()) {
        if (option->get_lnames().empty()) continue;
        std::string const& name = option->get_lnames().front();
        if (name == "help" || name == "config" || name == "print-config") continue;
        bool const is_flag = option->get_expected_max() == 0;
        std::string const value = option->count() > 0 ? option->results().back()
                                  : is_flag           ? "false"
                                                      : option->get_default_str();
        if (value.empty()) {
            text += fmt::format("# {} =\n", name);
            continue;
        }
        bool const is_bare = is_flag || value.find_first_not_of("0123456789.+-e") == std::string::npos;
        text += is_bare ? fmt::format("{} = {}\n", name, value) : fmt::format("{} = \"{}\"\n", name, value);
    }
    return text;
}

std::variant<TrainFlags, ExitCode> read_train_flags(Arguments const& arguments) {
    auto const program = make_program();
    if (auto const code = parse(*program, arguments)) return *code;
    CLI::App const& train = *program->app.get_subcommand("train");
    auto const value_of = [&](char const* flag) {
        CLI::Option const& option = *train.get_option(flag);
        return option.count() > 0 ? option.results().back() : option.get_default_str();
    };
    return TrainFlags{value_of("--run"), value_of("--device"), value_of("--replicas"),
                      explicitly_given(train)};
}

ExitCode run_command_line(Arguments& arguments) {
    auto const program = make_program();
    if (auto const code = parse(*program, arguments)) return *code;
    for (auto const& [command, action] : program->commands)
        if (command->parsed()) return run_action(action, arguments);
    return ExitCode::usage;
}

}  // namespace holdfast::commands
