// SPDX-License-Identifier: Apache-2.0
#include "train/outcome.hpp"

#include <cstddef>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "checkpoint/durable_file.hpp"
#include "core/error.hpp"
#include "core/json_text.hpp"

namespace holdfast::train {

std::string to_json(LaunchOutcome const& outcome) {
    nlohmann::ordered_json json;
    json["launch"] = outcome.launch;
    json["code"] = static_cast<int>(outcome.code);
    json["reason"] = outcome.reason;
    json["epoch"] = outcome.epoch;
    json["step"] = outcome.step;
    json["saved_step"] = outcome.saved_step;
    json["launches_without_progress"] = outcome.launches_without_progress;
    json["asked_to_stop"] = outcome.asked_to_stop;
    // A reason may quote a path that is not UTF-8.
    return json_text(json) + "\n";
}

std::optional<LaunchOutcome> read_outcome(std::filesystem::path const& run_dir) {
    constexpr std::size_t max_bytes = std::size_t{1} << 20;
    try {
        std::vector<std::byte> const text = checkpoint::read_file(run_dir / outcome_file, max_bytes);
        nlohmann::json const json =
            nlohmann::json::parse(std::string_view(reinterpret_cast<char const*>(text.data()), text.size()));
        LaunchOutcome outcome;
        json.at("launch").get_to(outcome.launch);
        outcome.code = static_cast<ExitCode>(json.at("code").get<int>());
        json.at("reason").get_to(outcome.reason);
        json.at("epoch").get_to(outcome.epoch);
        json.at("step").get_to(outcome.step);
        json.at("saved_step").get_to(outcome.saved_step);
        json.at("launches_without_progress").get_to(outcome.launches_without_progress);
        outcome.asked_to_stop = json.value("asked_to_stop", false);
        return outcome;
    } catch (nlohmann::json::exception const&) {
        return std::nullopt;
    } catch (Error const&) {
        return std::nullopt;
    }
}

ProgressSoFar progress_so_far(std::optional<LaunchOutcome> const& last, std::int64_t begun_at,
                              std::int64_t limit) {
    bool const has_got_on = !last || begun_at > last->saved_step;
    return {limit, begun_at, has_got_on ? 0 : last->launches_without_progress};
}

LaunchOutcome counted(LaunchOutcome outcome, EndedBy ended_by, ProgressSoFar const& so_far) {
    std::int64_t& launches = outcome.launches_without_progress;
    launches =
        outcome.saved_step > so_far.begun_at ? 0 : so_far.launches + (ended_by == EndedBy::error ? 1 : 0);
    outcome.asked_to_stop = ended_by == EndedBy::request && outcome.code == ExitCode::retry;
    bool const is_worth_another = outcome.code == ExitCode::retry || outcome.code == ExitCode::internal_error;
    if (ended_by == EndedBy::error && is_worth_another && so_far.limit > 0 && launches >= so_far.limit) {
        outcome.code = ExitCode::do_not_requeue;
        outcome.reason = fmt::format(
            "no progress: {} launches in a row ended by an error, without a new checkpoint (starting again "
            "seems not to "
            "help); the last: {}",
            launches, outcome.reason);
    }
    if (outcome.code == ExitCode::do_not_requeue)
        launches = 0;  // a person acts now, and then it is worth as many again
    return outcome;
}

}  // namespace holdfast::train
