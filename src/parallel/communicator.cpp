// SPDX-License-Identifier: Apache-2.0
#include "parallel/communicator.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "core/error.hpp"
#include "core/this_host.hpp"
#include "parallel/communicator_state.hpp"
#include "parallel/mpi_check.hpp"

namespace holdfast::parallel {
namespace {

/// Large broadcasts go in pieces: MPI counts are ints, and one call for the whole buffer is several times
/// slower.
constexpr std::size_t broadcast_piece_bytes = std::size_t{4} << 20;

/// A scope in which this rank waits for the others.
class Waiting {
  public:
    explicit Waiting(std::function<void(bool)> const& tell) : tell_(tell) {
        if (tell_) tell_(true);
    }
    ~Waiting() {
        if (tell_) tell_(false);
    }
    Waiting(Waiting const&) = delete;
    Waiting& operator=(Waiting const&) = delete;

  private:
    std::function<void(bool)> const& tell_;
};

struct Failure {
    ExitCode code = ExitCode::internal_error;
    std::string message;
};

Failure describe(std::exception_ptr const& error) {
    try {
        std::rethrow_exception(error);
    } catch (Error const& caught) {
        return {caught.code(), caught.what()};
    } catch (std::exception const& caught) {
        return {ExitCode::internal_error, caught.what()};
    } catch (...) {
        return {ExitCode::internal_error, "an exception of unknown type"};
    }
}

}  // namespace

Communicator::Communicator() : state_(std::make_unique<State>()) {
    state_->host_name = holdfast::host_name();
}
Communicator::Communicator(std::unique_ptr<State> state) : state_(std::move(state)) {}
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;

Communicator::~Communicator() {
    // Freeing waits for the peers, so never while unwinding.
    if (!state_ || state_->all == MPI_COMM_NULL || std::uncaught_exceptions() > 0) return;
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized) return;
    MPI_Comm_free(&state_->within_host);
    MPI_Comm_free(&state_->all);
}

Communicator Communicator::collective_world(HostOf const& host_of) {
    auto state = std::make_unique<State>();
    State& s = *state;
    s.host_name = holdfast::host_name();
    int world_rank = 0;
    mpi_check(MPI_Comm_rank(MPI_COMM_WORLD, &world_rank), "MPI_Comm_rank");
    mpi_check(MPI_Comm_size(MPI_COMM_WORLD, &s.size), "MPI_Comm_size");

    MPI_Comm machine = MPI_COMM_NULL;
    mpi_check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world_rank, MPI_INFO_NULL, &machine),
              "MPI_Comm_split_type");
    // A host is named by its machine (the first world rank there) and the caller's grouping within it.
    int host[2] = {world_rank, host_of ? host_of(world_rank) : 0};
    mpi_check(MPI_Bcast(host, 1, MPI_INT, 0, machine), "MPI_Bcast");
    mpi_check(MPI_Comm_free(&machine), "MPI_Comm_free");
    std::vector<std::pair<int, int>> hosts(static_cast<std::size_t>(s.size));
    static_assert(sizeof hosts[0] == sizeof host);
    mpi_check(MPI_Allgather(host, 2, MPI_INT, hosts.data(), 2, MPI_INT, MPI_COMM_WORLD), "MPI_Allgather");

    std::map<std::pair<int, int>, int> number;  // hosts in the order of their first world rank
    std::vector<int> host_of_world_rank;
    for (auto const& name : hosts)
        host_of_world_rank.push_back(number.try_emplace(name, static_cast<int>(number.size())).first->second);
    std::vector<int> order(static_cast<std::size_t>(s.size));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {},
                             [&](int r) { return host_of_world_rank[static_cast<std::size_t>(r)]; });
    s.host_of_rank.clear();
    for (int const r : order) s.host_of_rank.push_back(host_of_world_rank[static_cast<std::size_t>(r)]);
    s.num_hosts = static_cast<int>(number.size());
    s.rank = static_cast<int>(std::ranges::find(order, world_rank) - order.begin());

    mpi_check(MPI_Comm_split(MPI_COMM_WORLD, 0, s.rank, &s.all), "MPI_Comm_split");
    int const my_host = s.host_of_rank[static_cast<std::size_t>(s.rank)];
    mpi_check(MPI_Comm_split(s.all, my_host, s.rank, &s.within_host), "MPI_Comm_split");
    mpi_check(MPI_Comm_rank(s.within_host, &s.local_rank), "MPI_Comm_rank");
    mpi_check(MPI_Comm_size(s.within_host, &s.local_size), "MPI_Comm_size");
    return Communicator(std::move(state));
}

int Communicator::rank() const { return state_->rank; }
int Communicator::size() const { return state_->size; }
int Communicator::host() const { return state_->host_of_rank[static_cast<std::size_t>(state_->rank)]; }
int Communicator::num_hosts() const { return state_->num_hosts; }
int Communicator::local_rank() const { return state_->local_rank; }
int Communicator::local_size() const { return state_->local_size; }
std::string const& Communicator::host_name() const { return state_->host_name; }

void Communicator::tell_when_waiting(std::function<void(bool)> tell) {
    state_->tell_waiting = std::move(tell);
}

void Communicator::barrier() const {
    Waiting const waiting(state_->tell_waiting);
    if (size() > 1) mpi_check(MPI_Barrier(state_->all), "MPI_Barrier");
}

void Communicator::barrier_host() const {
    Waiting const waiting(state_->tell_waiting);
    if (local_size() > 1) mpi_check(MPI_Barrier(state_->within_host), "MPI_Barrier");
}

void Communicator::broadcast(std::span<std::byte> bytes, int root) const {
    if (size() == 1) return;
    Waiting const waiting(state_->tell_waiting);
    for (std::size_t begin = 0; begin < bytes.size(); begin += broadcast_piece_bytes) {
        std::size_t const count = std::min(broadcast_piece_bytes, bytes.size() - begin);
        mpi_check(MPI_Bcast(bytes.data() + begin, static_cast<int>(count), MPI_BYTE, root, state_->all),
                  "MPI_Bcast");
    }
}

std::string Communicator::broadcast(std::string const& text, int root) const {
    std::uint64_t length = text.size();
    broadcast(std::as_writable_bytes(std::span(&length, 1)), root);
    std::string result = text;
    result.resize(length);
    broadcast(std::as_writable_bytes(std::span(result.data(), result.size())), root);
    return result;
}

std::vector<std::string> Communicator::all_gather(std::string const& mine) const {
    if (size() == 1) return {mine};
    Waiting const waiting(state_->tell_waiting);
    int const length = static_cast<int>(mine.size());
    std::vector<int> lengths(static_cast<std::size_t>(size()));
    mpi_check(MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, state_->all), "MPI_Allgather");
    std::vector<int> begins(lengths.size());
    std::exclusive_scan(lengths.begin(), lengths.end(), begins.begin(), 0);
    std::string all(static_cast<std::size_t>(begins.back() + lengths.back()), '\0');
    mpi_check(MPI_Allgatherv(mine.data(), length, MPI_CHAR, all.data(), lengths.data(), begins.data(),
                             MPI_CHAR, state_->all),
              "MPI_Allgatherv");
    std::vector<std::string> texts;
    for (std::size_t r = 0; r < lengths.size(); ++r)
        texts.push_back(
            all.substr(static_cast<std::size_t>(begins[r]), static_cast<std::size_t>(lengths[r])));
    return texts;
}

void Communicator::agree_ok(std::exception_ptr local_error) const {
    if (size() == 1) {
        if (local_error) std::rethrow_exception(local_error);
        return;
    }
    int const mine = local_error ? rank() : size();
    int first = 0;
    {
        Waiting const waiting(state_->tell_waiting);
        mpi_check(MPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, state_->all), "MPI_Allreduce");
    }
    if (first == size()) return;
    Failure failure;
    if (rank() == first) {
        failure = describe(local_error);
        failure.message = fmt::format("{} [rank {}, {}]", failure.message, rank(), host_name());
    }
    int code = static_cast<int>(failure.code);
    broadcast(std::as_writable_bytes(std::span(&code, 1)), first);
    throw AgreedError(static_cast<ExitCode>(code), broadcast(failure.message, first));
}

void Communicator::agree(std::function<void()> const& action) const {
    std::exception_ptr error;
    try {
        action();
    } catch (...) {
        error = std::current_exception();
    }
    agree_ok(error);
}

}  // namespace holdfast::parallel
