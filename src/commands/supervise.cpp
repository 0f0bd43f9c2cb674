// SPDX-License-Identifier: Apache-2.0
// holdfast supervise: starts mpirun with the train command, turns signals into a clean stop, and starts again after what may
// pass, with as many ranks as can start at that moment. It never initializes MPI and computes nothing itself.
#include "commands/supervise.hpp"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string_view>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "checkpoint/checkpoint_store.hpp"
#include "checkpoint/run_ownership.hpp"
#include "commands/command_line.hpp"
#include "commands/commands.hpp"
#include "commands/number_flag.hpp"
#include "core/child_process.hpp"
#include "core/error.hpp"
#include "core/log.hpp"
#include "core/stop_request.hpp"
#include "core/this_host.hpp"

namespace holdfast::commands {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
using namespace std::chrono_literals;

constexpr auto patience = 10s;  // for an mpirun after its ranks' outcome, and for ranks after their mpirun
constexpr auto preflight_patience = 30s;  // takes a second or two; a host that does not answer takes for ever

/// Tells the ranks whose they are: an earlier launch of the same supervise is over, even if its host is out of reach and nobody can
/// look (checkpoint/run_ownership.cpp).
constexpr char supervised_by[] = "HOLDFAST_SUPERVISED_BY";

struct SuperviseOptions {
    int np = 0;
    int min_np = 1;
    std::int64_t max_restarts = 3;
    std::string mpirun = "mpirun --bind-to none";  // Open MPI ties each of two ranks to one core otherwise
};

template <typename... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
    log::info("supervise: {}", fmt::format(format, std::forward<Args>(args)...));
}

/// The signals that ask for a stop are blocked and waited for. So nothing is lost, and one that comes between two launches
/// counts for the next.
class StopSignals {
  public:
    StopSignals() {
        ::sigemptyset(&waited_for_);
        for (int const signal : {SIGUSR1, SIGTERM, SIGINT, SIGCHLD}) ::sigaddset(&waited_for_, signal);
        struct sigaction hang_up {};
        ::sigaction(SIGHUP, nullptr, &hang_up);
        if (hang_up.sa_handler != SIG_IGN) ::sigaddset(&waited_for_, SIGHUP);  // not under nohup
        ::sigprocmask(SIG_BLOCK, &waited_for_, nullptr);
        if (int const earlier = stop_signal()) note(earlier);
    }

    /// Returns after `time`, or earlier when a signal came or a child process ended.
    void wait(Milliseconds time) {
        auto const seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
        timespec const timeout{seconds.count(), std::chrono::nanoseconds(time - seconds).count()};
        int const signal = ::sigtimedwait(&waited_for_, nullptr, &timeout);
        if (signal > 0 && signal != SIGCHLD) note(signal);
    }
    bool is_stop_requested() const { return stop_requested_; }
    /// A second INT: now, and without saving.
    bool is_stop_at_once_requested() const { return interrupts_ > 1; }

  private:
    void note(int signal) {
        bool const first = !std::exchange(stop_requested_, true);
        if (signal == SIGINT) ++interrupts_;
        if (is_stop_at_once_requested())
            say("interrupted again: killing the launch; its last checkpoint is good");
        else if (first)
            say("got {}: asking the run to save and stop (once more INT ends it at once)",
                ::sigabbrev_np(signal));
    }

    sigset_t waited_for_{};
    bool stop_requested_ = false;
    int interrupts_ = 0;
};

std::string own_path() {
    std::error_code error;
    auto const path = std::filesystem::read_symlink("/proc/self/exe", error);
    require(!error, ExitCode::do_not_requeue, "cannot find the program's own file: /proc/self/exe: {}",
            error.message());
    return path.string();
}

/// A name that no other supervise has.
std::string new_name() {
    return fmt::format("{}:{}:{}", host_name(), ::getpid(),
                       std::chrono::system_clock::now().time_since_epoch().count());
}

/// The findings of doctor in a line, else what mpirun said first: it frames its messages with lines of dashes.
std::string summary_of(std::string const& text) {
    std::string findings;
    std::string first;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with("error: ") || line.starts_with("warning: "))
            findings += (findings.empty() ? "" : "; ") + line;
        if (first.empty() && line.find_first_not_of("- \r") != std::string::npos) first = line;
    }
    if (!findings.empty()) return findings;
    return first.empty() ? "it said nothing" : first;
}

class Supervisor {
  public:
    Supervisor(SuperviseOptions const& options, TrainFlags const& train, std::vector<std::string> command)
        : options_(options), train_(train), command_(std::move(command)), program_(own_path()) {
        ::setenv(supervised_by, new_name().c_str(), 1);
    }

    int supervise() {
        for (std::int64_t restarts = 0;; ++restarts) {
            Decision const next =
                after_launch(launch(), signals_.is_stop_requested(), restarts, options_.max_restarts);
            if (next.starts_again) {
                say("{}; restart {} of {} in {} s", next.sentence, restarts + 1, options_.max_restarts,
                    back_off(restarts + 1).count());
                wait(back_off(restarts + 1));
            }
            if (!next.starts_again || signals_.is_stop_requested()) {
                int const code = next.starts_again ? static_cast<int>(ExitCode::retry) : next.code;
                say("{}; ending with code {}",
                    next.starts_again ? "asked to stop before the restart" : next.sentence, code);
                return code;
            }
        }
    }

  private:
    /// Until the time is over or a stop is asked for.
    void wait(Milliseconds time) {
        auto const end = Clock::now() + time;
        while (Clock::now() < end && !signals_.is_stop_requested())
            signals_.wait(std::chrono::duration_cast<Milliseconds>(end - Clock::now()) + 1ms);
    }

    /// `mpirun -np RANKS PROGRAM ARGUMENTS`. A shell reads what the user calls mpirun, so it may have options, and quotes.
    std::vector<std::string> mpirun_command(int ranks, std::vector<std::string> const& arguments) const {
        std::vector<std::string> command{"/bin/sh", "-c", "exec " + options_.mpirun + " \"$@\"", "supervise"};
        for (std::string const& word : {std::string("-np"), std::to_string(ranks), std::string("-x"),
                                        std::string(supervised_by), program_})
            command.push_back(word);
        command.insert(command.end(), arguments.begin(), arguments.end());
        return command;
    }

    /// What must succeed on so many ranks before they are given the run.
    std::vector<std::string> preflight_command(int ranks) const {
        std::vector<std::string> arguments{"doctor", "--quick", "--device", train_.device};
        if (train_.explicitly_given.contains("replicas"))
            arguments.insert(arguments.end(), {"--replicas", train_.replicas});
        return mpirun_command(ranks, arguments);
    }

    struct ShortRun {
        int code = 0;
        std::string text;
        bool timed_out = false;
    };
    ShortRun run_quickly(std::vector<std::string> const& command) {
        CapturedText const text;
        ChildProcess mpirun(command, text.descriptor(), SIGKILL);
        auto const end = Clock::now() + preflight_patience;
        while (!mpirun.exit_code() && !signals_.is_stop_requested()) {
            if (Clock::now() > end)
                return {static_cast<int>(ExitCode::retry),
                        fmt::format("no end after {} s", preflight_patience.count()), true};
            signals_.wait(1s);
        }
        return {mpirun.exit_code().value_or(static_cast<int>(ExitCode::retry)), text.text()};
    }

    /// What fails so would fail again: no host and no resource of the launch takes part in it.
    void require_working_mpirun() {
        ShortRun const result = run_quickly({"/bin/sh", "-c", "exec " + options_.mpirun + " --version"});
        require(result.code == 0 || result.timed_out || signals_.is_stop_requested(),
                ExitCode::do_not_requeue,
                "cannot run '{} --version' (code {}: {}); name an mpirun with --mpirun", options_.mpirun,
                result.code, summary_of(result.text));
    }

    /// Where a run has no checkpoint yet, its first launch decides the number of replicas and of their threads: then a rank less
    /// would be another result.
    int fewest_ranks() const {
        bool const decides_nothing =
            train_.explicitly_given.contains("replicas") && train_.explicitly_given.contains("threads");
        bool const is_new = checkpoint::CheckpointStore(train_.run).list().empty();
        return is_new && !decides_nothing ? options_.np : options_.min_np;
    }

    LaunchEnd launch() try {
        int const fewest = fewest_ranks();
        int code = 0;
        for (int ranks = options_.np; ranks >= fewest; --ranks) {
            ShortRun const result = run_quickly(preflight_command(ranks));
            if (signals_.is_stop_requested())
                return {static_cast<int>(ExitCode::retry), "asked to stop before the launch", true};
            std::string const summary = summary_of(result.text);
            if (result.code == 0) {
                if (summary.starts_with("warning: ")) say("{} ranks: {}", ranks, summary);
                has_started_ = true;
                return launch(ranks);
            }
            if (!has_started_ && ranks == options_.np && !result.timed_out) require_working_mpirun();
            say("{} ranks cannot start now (code {}): {}", ranks, result.code, summary);
            code = result.code;
            if (result.timed_out) break;  // a host does not answer, and would not for fewer ranks
        }
        if (fewest > options_.min_np)
            say("the first launch of a run takes all {} ranks, since its number of replicas and their "
                "threads come from it; with --replicas and --threads it could begin with fewer",
                fewest);
        // mpirun knows no code of ours: only doctor says that waiting is no use.
        bool const is_final = code == static_cast<int>(ExitCode::do_not_requeue);
        return {is_final ? code : static_cast<int>(ExitCode::retry), "too few ranks can start", false};
    } catch (Error const& error) {
        return {static_cast<int>(error.code()), error.what(), false};
    }

    LaunchEnd launch(int ranks) {
        std::int64_t const newest_before = checkpoint::newest_launch(train_.run);
        // Should this process be killed, the run is to save and stop: mpirun passes USR1 on, and a TERM only after a while.
        ChildProcess mpirun(mpirun_command(ranks, command_), ChildProcess::same_output, SIGUSR1);
        say("started {} ranks under process {}, run directory {}", ranks, mpirun.pid(), train_.run);
        std::optional<Clock::time_point> over_since;  // the ranks, or mpirun
        bool told = false;
        bool killed = false;
        while (!mpirun.has_ended()) {
            if (signals_.is_stop_at_once_requested()) {
                mpirun.kill_session();
            } else if (signals_.is_stop_requested() && owns_run(newest_before)) {
                touch_drain();
                if (!std::exchange(told, true)) mpirun.signal(SIGUSR1);
            }
            bool const is_over = mpirun.exit_code() || outcome_since(newest_before);
            if (is_over && !over_since) over_since = Clock::now();
            if (over_since && Clock::now() - *over_since > patience) {
                if (!std::exchange(killed, true))
                    say("{} is still there {} s after the end of {}; killing it",
                        mpirun.exit_code() ? "a rank" : "mpirun", patience.count(),
                        mpirun.exit_code() ? "mpirun" : "the ranks");
                mpirun.kill_session();
            }
            if (over_since && Clock::now() - *over_since > 2 * patience && mpirun.exit_code()) {
                say("a rank cannot be killed (it may wait for a disk); going on without it");
                break;  // should it ever wake, it has lost the run
            }
            signals_.wait(mpirun.exit_code() ? 50ms : 1000ms);
        }
        bool const takes_run =
            !train_.explicitly_given.contains("dry-run") && !train_.explicitly_given.contains("print-config");
        return end_of_launch(train::read_outcome(train_.run),
                             {newest_before, checkpoint::newest_launch(train_.run)}, *mpirun.exit_code(),
                             takes_run);
    }

    /// While a launch runs; nothing while the disk is in trouble, so that it is asked again.
    std::optional<std::int64_t> newest_launch() const {
        try {
            return checkpoint::newest_launch(train_.run);
        } catch (Error const&) {
            return std::nullopt;
        }
    }

    /// Before that, a signal would kill ranks that are not ready for it, and RUN/drain would be removed as an older one.
    bool owns_run(std::int64_t newest_before) const { return newest_launch().value_or(0) > newest_before; }

    bool outcome_since(std::int64_t newest_before) const {
        auto const newest = newest_launch();
        auto const outcome = train::read_outcome(train_.run);
        return outcome && newest.value_or(0) > newest_before && outcome->launch == *newest;
    }

    /// Again and again, as the new owner removes a file that it takes for an older one.
    void touch_drain() const {
        int const file = ::open((std::filesystem::path(train_.run) / "drain").c_str(),
                                O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (file >= 0) ::close(file);
    }

    SuperviseOptions options_;
    TrainFlags train_;
    std::vector<std::string> command_;
    std::string program_;
    bool has_started_ = false;  ///< a launch of any ranks
    StopSignals signals_;
};

/// What stands after "--".
std::vector<char*> supervised_command(Arguments const& arguments) {
    char** const end = arguments.argv + arguments.argc;
    char** const mark = std::find(arguments.argv, end, std::string_view("--"));
    std::vector<char*> command(mark == end ? end : mark + 1, end);
    require(
        !command.empty(), ExitCode::usage,
        "no command to supervise; put it after --, as in: holdfast supervise --np 4 -- train --epochs 90");
    require(command.front() == std::string_view("train"), ExitCode::usage,
            "cannot supervise '{}' (only train goes on where it stopped); put 'train' after --",
            command.front());
    return command;
}

ExitCode run_supervise(SuperviseOptions const& options, Arguments const& arguments) {
    require(options.min_np <= options.np, ExitCode::usage,
            "--min-np {} is more than --np {}; give --min-np at most as many ranks", options.min_np,
            options.np);
    require(!options.mpirun.empty(), ExitCode::usage, "--mpirun is empty; name an mpirun, or leave it away");
    for (char const* const variable : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK"})
        require(std::getenv(variable) == nullptr, ExitCode::usage,
                "supervise is itself started by mpirun or srun (every rank would start a launch of its own); "
                "start it "
                "without");
    std::vector<char*> command = supervised_command(arguments);
    std::vector<char*> whole = command;
    whole.insert(whole.begin(), arguments.argv[0]);
    auto const train = read_train_flags({static_cast<int>(whole.size()), whole.data()});
    if (auto const* const code = std::get_if<ExitCode>(&train)) return *code;
    Supervisor supervisor(options, std::get<TrainFlags>(train), {command.begin(), command.end()});
    return static_cast<ExitCode>(supervisor.supervise());  // may also be a code of mpirun, 137 for instance
}

}  // namespace

LaunchEnd end_of_launch(std::optional<train::LaunchOutcome> const& outcome, NewestLaunch const& newest,
                        int mpirun_code, bool takes_run) {
    bool const took_run = newest.now > newest.before;
    // A launch that does not own the run leaves no outcome, but the owner may have left its own meanwhile.
    bool const is_refused = mpirun_code == static_cast<int>(ExitCode::owned_elsewhere);
    if (outcome && took_run && outcome->launch == newest.now && !is_refused)
        return {static_cast<int>(outcome->code), outcome->reason, outcome->asked_to_stop};
    if (mpirun_code != 0) return {mpirun_code, "no outcome was written", false};
    // Whoever finishes says so, also where the run was finished before.
    if (took_run)
        return {static_cast<int>(ExitCode::internal_error), "mpirun returned 0, but no outcome was written",
                false};
    if (takes_run)
        return {static_cast<int>(ExitCode::do_not_requeue),
                "mpirun returned 0, but no rank got to the run; --mpirun must name a program that starts "
                "the ranks, waits for them, and returns their code",
                false};
    return {0, "done", false};
}

Decision after_launch(LaunchEnd const& end, bool stop_requested, std::int64_t restarts,
                      std::int64_t max_restarts) {
    constexpr std::array final_codes{ExitCode::finished, ExitCode::usage, ExitCode::do_not_requeue,
                                     ExitCode::owned_elsewhere};
    constexpr int retry = static_cast<int>(ExitCode::retry);
    std::string ended = fmt::format("the launch ended with code {} ({})", end.code, end.reason);
    if (std::ranges::find(final_codes, static_cast<ExitCode>(end.code)) != final_codes.end())
        return {false, end.code, std::move(ended)};
    if (stop_requested || end.asked_to_stop) return {false, retry, std::move(ended)};
    if (restarts >= max_restarts)
        return {false, end.code,
                fmt::format("{}, after {} restarts; start the same command to go on", ended, restarts)};
    return {true, end.code, std::move(ended)};
}

std::chrono::seconds back_off(std::int64_t restart) {
    return restart > 6 ? 60s : std::chrono::seconds(std::int64_t{1} << (restart - 1));
}

Action add_supervise(CLI::App& app) {
    auto const options = std::make_shared<SuperviseOptions>();
    CLI::App* const command =
        app.add_subcommand("supervise", "Start train under mpirun, and again after what may pass");
    whole_number(command->add_option("--np", options->np, "Ranks to start")->required(), 1, 1000000);
    whole_number(
        command->add_option("--min-np", options->min_np, "Fewest ranks to go on with where not all can start")
            ->capture_default_str(),
        1, 1000000);
    whole_number(command->add_option("--max-restarts", options->max_restarts, "Restarts in all (0: none)")
                     ->capture_default_str(),
                 0, 1000000);
    command->add_option("--mpirun", options->mpirun, "mpirun and its options, as a shell reads them")
        ->capture_default_str();
    command->footer(
        "The command to supervise comes last, after --:\n  holdfast supervise --np 4 -- train ...");
    return [options](Arguments& arguments) { return run_supervise(*options, arguments); };
}

}  // namespace holdfast::commands
