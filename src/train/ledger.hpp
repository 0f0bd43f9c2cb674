// SPDX-License-Identifier: Apache-2.0
// RUN/ledger.jsonl: which launch, on which hosts, made which checkpoint out of which other one and consumed which samples for
// it. A checkpoint's row is on the disk before the checkpoint has its name, so a file without a row cannot be, and a row
// without a file tells of work that was lost and done again. From the rows check_chain proves that a run is one unbroken chain
// in which every sample of every epoch was consumed exactly once. The rows: docs/checkpoint-format.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/durable_file.hpp"

namespace holdfast::train {

/// A place in the run. Samples count in the order of their epoch (data/epoch_order.hpp): an epoch's order is a permutation, so
/// positions [0, n) each once are the samples each once.
struct Position {
    std::int64_t step = 0;    ///< steps done
    std::int64_t epoch = 0;   ///< of the next sample
    std::int64_t sample = 0;  ///< samples of this epoch consumed

    friend bool operator==(Position const&, Position const&) = default;
};

/// `open_epoch_count`: samples counted since the last evaluation, which may still be to come at the end of an epoch.
Position position_at(std::int64_t step, std::int64_t steps_per_epoch, std::int64_t open_epoch_count);

enum class RowKind {
    start,       ///< the checkpoint of step 0
    import,      ///< a copy of a checkpoint from elsewhere (--resume FILE)
    checkpoint,  ///< the steps since its parent; none where only an evaluation was missing
    digest,      ///< no checkpoint, only what the parameters were (--digest-every)
};

struct LedgerRow {
    RowKind kind = RowKind::checkpoint;
    std::int64_t launch = 0;
    std::vector<std::string> hosts;
    std::int64_t ranks = 0;
    std::string
        parent;  ///< file digest of the checkpoint it went on from; import: of the original; start: empty
    std::string source;      ///< import: path of the original
    Position first;          ///< where the parent was; unused for a digest
    Position end;            ///< where it is
    std::string digest;      ///< of the checkpoint file; empty for a digest
    std::string parameters;  ///< parameters_digest at `end`
    std::string previous;    ///< `check` of the row before, empty for the first
    std::string check;       ///< over all of the row but itself

    std::int64_t line = 0;        ///< where it was read, from 1
    bool is_intact = true;        ///< whether `check` fits the rest
    bool follows_a_hole = false;  ///< zeros before it: pages that a power cut lost
};

/// The row as a line of the file, without the line feed; its `check` is computed anew.
std::string to_line(LedgerRow const& row);

struct LedgerText {
    std::vector<LedgerRow> rows;     ///< in the order of the file
    std::vector<std::int64_t> torn;  ///< numbers of lines that are no rows: cut off by a crash
};

LedgerText parse_ledger(std::string_view text);
/// A ledger that is not there is an empty one. Throws Error(retry) for disk trouble, Error(do_not_requeue) where no file can be.
LedgerText read_ledger(std::filesystem::path const& path);

/// What the rows of a run must fit.
struct RunShape {
    std::int64_t samples_per_epoch = 0;  ///< padding included; 0: not known, as no epoch is finished
    std::int64_t steps_per_epoch = 1;
    std::int64_t samples_per_step = 1;  ///< replicas x batch size
    bool platform_changed = false;      ///< then a step computed twice may have given different results
};

struct EpochShare {
    std::int64_t epoch = 0;
    std::int64_t first_sample = 0;  ///< not 0 where the chain begins inside the epoch
    std::int64_t end_sample = 0;
    bool is_complete = false;
    std::vector<std::int64_t> launches;  ///< that consumed them, in order
    std::vector<std::int64_t> ranks;     ///< of these launches, in order
};

struct ChainReport {
    std::vector<std::string> findings;  ///< what is wrong; the chain is proved if there are none
    std::vector<std::string> notes;     ///< what a person may want to know
    std::vector<LedgerRow> path;        ///< from the beginning to the newest checkpoint
    std::vector<EpochShare> epochs;     ///< of the path; empty unless it is proved
    std::int64_t num_discarded = 0;     ///< rows of checkpoints that are not on the path
    std::int64_t num_digests = 0;

    bool is_proved() const { return findings.empty(); }
};

/// Walks back from the checkpoint file with digest `newest` at position `head` to the beginning.
ChainReport check_chain(LedgerText const& ledger, std::string const& newest, Position const& head,
                        RunShape const& shape);

/// What a launch appends. Any thread may, also two at a time; nothing here needs MPI.
class Ledger {
  public:
    struct Launch {
        std::int64_t number = 0;
        std::vector<std::string> hosts;
        std::int64_t ranks = 1;
    };
    /// `temp_dir` is the owner's folder. Throws as AppendedFile does.
    Ledger(std::filesystem::path path, Launch launch, std::filesystem::path const& temp_dir);

    /// Appends a row, durably for a checkpoint's. Launch, hosts, ranks, previous and check are filled in. Throws Error(retry)
    /// for disk trouble, after which it can be tried again.
    void append(LedgerRow row);

  private:
    checkpoint::AppendedFile file_;
    Launch launch_;
    std::mutex mutex_;
    bool is_read_ = false;  ///< whether last_check_ is that of the file
    std::string last_check_;
};

}  // namespace holdfast::train
