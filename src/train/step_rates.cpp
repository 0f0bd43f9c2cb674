// SPDX-License-Identifier: Apache-2.0
#include "train/step_rates.hpp"

#include "optim/moving_average.hpp"

namespace holdfast::train {

optim::Schedule learning_rate_schedule(Settings const& settings, std::int64_t steps_per_epoch) {
    using enum optim::ScheduleShape;
    optim::Schedule schedule;
    schedule.shape = settings.lr_schedule == "cosine"      ? cosine
                     : settings.lr_schedule == "one-cycle" ? one_cycle
                                                           : step;
    schedule.lr = settings.lr;
    schedule.step_size = settings.lr_step_size;
    schedule.gamma = settings.lr_gamma;
    schedule.warmup_steps = settings.warmup_epochs * steps_per_epoch;
    schedule.steps_per_epoch = steps_per_epoch;
    schedule.total_steps = settings.epochs * steps_per_epoch;
    return schedule;
}

optim::SgdRates sgd_rates(Settings const& settings, double lr, std::int64_t step) {
    optim::SgdRates rates;
    rates.lr = static_cast<float>(lr);
    rates.momentum = static_cast<float>(settings.momentum);
    rates.nesterov = settings.nesterov;
    rates.weight_decay = static_cast<float>(settings.weight_decay);
    rates.average_weight = static_cast<float>(optim::average_weight_at(settings.ema_decay, step));
    return rates;
}

}  // namespace holdfast::train
