// SPDX-License-Identifier: Apache-2.0
#include "train/replica_slots.hpp"

#include <cassert>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "train/compute_thread.hpp"

namespace holdfast::train {

class ReplicaSlots::Slot {
  public:
    Slot(model::ResNet const& network, StateTensors const& tensors, int threads, double label_smoothing)
        : thread_([=, this, &network] { run(network, tensors, threads, label_smoothing); }) {}

    ~Slot() {
        {
            std::lock_guard const lock(mutex_);
            ending_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }

    void start(Job job) {
        {
            std::lock_guard const lock(mutex_);
            assert(!job_);
            job_ = std::move(job);
        }
        changed_.notify_all();
    }

    std::exception_ptr wait() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !job_; });
        return std::exchange(error_, nullptr);
    }

  private:
    void run(model::ResNet const& network, StateTensors const& tensors, int threads, double label_smoothing) {
        prepare_compute_thread(threads);
        Replica replica(network, tensors, {}, label_smoothing);
        std::unique_lock lock(mutex_);
        while (true) {
            changed_.wait(lock, [this] { return ending_ || job_; });
            if (!job_) return;
            lock.unlock();
            std::exception_ptr error;
            try {
                job_(replica);
            } catch (...) {
                error = std::current_exception();
            }
            lock.lock();
            error_ = error;
            job_ = nullptr;
            changed_.notify_all();
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    Job job_;
    std::exception_ptr error_;
    bool ending_ = false;
    std::thread thread_;  ///< last: it uses all of the above
};

ReplicaSlots::ReplicaSlots(model::ResNet const& network, StateTensors const& tensors, int num_slots,
                           int threads_per_replica, ComputeDevice device, double label_smoothing,
                           std::span<parallel::FloatRange const> early_parts) {
    assert(num_slots == 1 || !device.has_device_memory());
    prepare_compute_thread(threads_per_replica);
    require_full_team(threads_per_replica);
    if (num_slots == 1) {
        only_ = std::make_unique<Replica>(network, tensors, device, label_smoothing, early_parts);
        return;
    }
    for (int i = 0; i < num_slots; ++i)
        slots_.push_back(std::make_unique<Slot>(network, tensors, threads_per_replica, label_smoothing));
}

ReplicaSlots::~ReplicaSlots() = default;

int ReplicaSlots::size() const { return only_ ? 1 : static_cast<int>(slots_.size()); }

void ReplicaSlots::start(int slot, Job job) {
    if (only_)
        job(*only_);
    else
        slots_[static_cast<std::size_t>(slot)]->start(std::move(job));
}

void ReplicaSlots::wait() {
    std::exception_ptr first;
    for (auto const& slot : slots_)
        if (std::exception_ptr const error = slot->wait(); error && !first) first = error;
    if (first) std::rethrow_exception(first);
}

}  // namespace holdfast::train
