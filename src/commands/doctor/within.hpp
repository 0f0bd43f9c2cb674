// SPDX-License-Identifier: Apache-2.0
// Asking what may never answer: a file system whose server is gone keeps whoever touches it. The thread that asks is then left behind.
#pragma once

#include <chrono>
#include <exception>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "commands/doctor/finding.hpp"

namespace holdfast::commands::doctor {

/// What `ask` returns, or why it is not known: what it threw, or that it has not returned in time. `ask` must own all it uses.
template <typename Ask>
auto within(std::chrono::seconds limit, Ask ask) -> Known<decltype(ask())> {
    using Answer = decltype(ask());
    auto const task = std::make_shared<std::packaged_task<Answer()>>(std::move(ask));
    std::future<Answer> answer = task->get_future();
    std::thread([task] { (*task)(); }).detach();
    if (answer.wait_for(limit) != std::future_status::ready)
        return {{}, fmt::format("no answer within {} s", limit.count())};
    try {
        return {answer.get(), ""};
    } catch (std::exception const& error) {
        return {{}, error.what()};
    }
}

}  // namespace holdfast::commands::doctor
