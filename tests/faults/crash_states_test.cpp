// SPDX-License-Identifier: Apache-2.0
// Every state that a power cut during a save may leave on the disk, built from the recorded calls of one save: the reader
// finds the old or the new checkpoint, never a third thing, and the new one once it was acknowledged.
//
// The model promises as little as POSIX does. fsync of a file makes its bytes durable, fsync of a folder makes the names
// in it durable; before that any part of the bytes, in blocks of 4 KiB, and any of the names may be missing, a rename may
// have happened in one folder and not in the other, and a file may have its length but zeros in place of its bytes.
#include <algorithm>
#include <fcntl.h>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.hpp"
#include "faults/saving_run.hpp"

namespace holdfast::test {
namespace {

namespace fs = std::filesystem;
using checkpoint::DamagedFiles;
using checkpoint::TemporaryFolder;
using file_calls::Call;
using file_calls::Operation;
using ::testing::AnyOf;
using ::testing::Eq;

constexpr std::size_t block = 4096;

struct File {
    std::string durable;
    struct Write {
        std::size_t offset;
        std::string data;
    };
    std::vector<Write> unsynced;
};

/// A name given or taken away, not yet durable. file < 0: taken away.
struct NameChange {
    std::string path;
    int file;
    bool is_folder = false;
};

/// What is on the disk for sure, and what may be.
class Disk {
  public:
    /// Everything below `root` is durable.
    explicit Disk(fs::path const& root) : root_(root) {
        for (auto const& entry : fs::recursive_directory_iterator(root)) {
            std::string const path = entry.path().string();
            if (entry.is_directory()) {
                durable_folders_.insert(path);
            } else {
                durable_names_[path] = add_file(checkpoint::text_of(path));
            }
        }
        names_ = durable_names_;
    }

    void apply(Operation const& operation) {
        switch (operation.call) {
            case Call::open:
                if ((operation.flags & O_CREAT) != 0) {
                    names_[operation.path] = add_file("");
                    changes_.push_back({operation.path, names_[operation.path]});
                }
                if (names_.contains(operation.path))
                    file_of_opening_[operation.file] = names_[operation.path];
                break;
            case Call::write:
                files_[static_cast<std::size_t>(file_of_opening_.at(operation.file))].unsynced.push_back(
                    {static_cast<std::size_t>(operation.offset), operation.data});
                break;
            case Call::fsync: {
                File& file = files_[static_cast<std::size_t>(file_of_opening_.at(operation.file))];
                file.durable = content(file, std::string::npos, false);
                file.unsynced.clear();
                break;
            }
            case Call::sync_folder:
                std::erase_if(changes_, [&](NameChange const& change) {
                    bool const is_here = fs::path(change.path).parent_path() == operation.path;
                    if (is_here) make_durable(change, durable_names_, durable_folders_);
                    return is_here;
                });
                break;
            case Call::rename:
                names_[operation.target] = names_.at(operation.path);
                names_.erase(operation.path);
                changes_.push_back({operation.target, names_[operation.target]});
                changes_.push_back({operation.path, -1});
                break;
            case Call::mkdir:
                changes_.push_back({operation.path, 0, true});
                break;
            case Call::unlink:
                names_.erase(operation.path);
                changes_.push_back({operation.path, -1});
                break;
            case Call::close:
                break;
        }
    }

    /// Which of the pending name changes have reached the disk.
    std::vector<std::vector<bool>> name_choices(std::mt19937& engine) const {
        std::size_t const n = changes_.size();
        std::vector<std::vector<bool>> choices;
        for (std::size_t k = 0; k <= n; ++k) {
            std::vector<bool> first_k(n, false);
            std::fill(first_k.begin(), first_k.begin() + static_cast<std::ptrdiff_t>(k), true);
            choices.push_back(first_k);
            if (k < n) {
                std::vector<bool> all_but_one(n, true), only_one(n, false);
                all_but_one[k] = false;
                only_one[k] = true;
                choices.push_back(all_but_one);
                choices.push_back(only_one);
            }
        }
        for (int i = 0; i < 4; ++i) {
            std::vector<bool> some(n);
            std::generate(some.begin(), some.end(), [&] { return engine() % 2 == 0; });
            choices.push_back(some);
        }
        return choices;
    }

    /// How many of the unsynced bytes of each file have reached the disk, and whether the rest are zeros or missing.
    std::vector<std::pair<std::size_t, bool>> data_choices() const {
        std::size_t longest = 0;
        for (File const& file : files_) longest = std::max(longest, size_of(file.unsynced));
        std::vector<std::pair<std::size_t, bool>> choices{{longest, false}};
        for (std::size_t bytes = 0; bytes < longest; bytes += block) {
            choices.push_back({bytes, false});
            choices.push_back({bytes, true});
        }
        for (std::size_t const bytes :
             {std::size_t{1}, longest / 2, longest - std::min<std::size_t>(longest, 1)})
            choices.push_back({bytes, false});
        return choices;
    }

    /// Path to content of all that a reader finds, folders with an empty optional.
    std::map<std::string, std::optional<std::string>> state(
        std::vector<bool> const& name_choice, std::pair<std::size_t, bool> const& data_choice) const {
        auto names = durable_names_;
        auto folders = durable_folders_;
        for (std::size_t i = 0; i < changes_.size(); ++i) {
            if (name_choice[i]) make_durable(changes_[i], names, folders);
        }
        std::map<std::string, std::optional<std::string>> result;
        for (std::string const& folder : folders) {
            if (exists(folder, folders)) result[folder] = std::nullopt;
        }
        for (auto const& [path, file] : names) {
            if (exists(fs::path(path).parent_path(), folders))
                result[path] =
                    content(files_[static_cast<std::size_t>(file)], data_choice.first, data_choice.second);
        }
        return result;
    }

  private:
    static std::size_t size_of(std::vector<File::Write> const& writes) {
        std::size_t size = 0;
        for (auto const& write : writes) size += write.data.size();
        return size;
    }

    static std::string content(File const& file, std::size_t bytes, bool rest_is_zeros) {
        std::string content = file.durable;
        for (File::Write const& write : file.unsynced) {
            std::size_t const kept = std::min(bytes, write.data.size());
            bytes -= kept;
            std::size_t const size = rest_is_zeros ? write.data.size() : kept;
            if (size == 0) continue;
            content.resize(std::max(content.size(), write.offset + size), '\0');
            content.replace(write.offset, size, write.data.substr(0, kept) + std::string(size - kept, '\0'));
        }
        return content;
    }

    static void make_durable(NameChange const& change, std::map<std::string, int>& names,
                             std::set<std::string>& folders) {
        if (change.is_folder) {
            folders.insert(change.path);
        } else if (change.file >= 0) {
            names[change.path] = change.file;
        } else {
            names.erase(change.path);
        }
    }

    bool exists(fs::path folder, std::set<std::string> const& folders) const {
        for (; folder != root_; folder = folder.parent_path()) {
            if (!folders.contains(folder.string())) return false;
        }
        return true;
    }

    int add_file(std::string content) {
        files_.push_back({std::move(content), {}});
        return static_cast<int>(files_.size()) - 1;
    }

    fs::path root_;
    std::vector<File> files_;
    std::map<std::string, int> names_;  ///< as the program sees them
    std::map<std::string, int> durable_names_;
    std::set<std::string> durable_folders_;
    std::vector<NameChange> changes_;
    std::map<int, int> file_of_opening_;
};

class CrashStates : public ::testing::Test {
  protected:
    /// Called with each state of the disk, in `crashed`, and the marks that the program had passed.
    using Check = std::function<void(fs::path const& run, std::set<std::string> const& passed)>;

    /// Records what `save` does and gives `check` every state it may leave. The number of states.
    int for_every_state(std::function<void()> const& save, Check const& check) {
        Disk disk(root.path());
        file_calls::start(root.path().string());
        save();
        std::vector<Operation> const operations = file_calls::recorded();
        file_calls::stop();
        EXPECT_GE(operations.size(), 15u);

        std::mt19937 engine(20261130);
        std::set<std::string> passed;
        int num_states = 0;
        std::set<std::pair<std::size_t, std::set<std::string>>> seen;  // of equal ones, one is enough
        for (std::size_t done = 0; done <= operations.size(); ++done) {
            for (auto const& name_choice : disk.name_choices(engine)) {
                for (auto const& data_choice : disk.data_choices()) {
                    auto const state = disk.state(name_choice, data_choice);
                    if (!seen.insert({hash_of(state), passed}).second) continue;
                    SCOPED_TRACE(fmt::format("after {} of {} calls, names {}, {} unsynced bytes kept{}", done,
                                             operations.size(), ::testing::PrintToString(name_choice),
                                             data_choice.first, data_choice.second ? ", then zeros" : ""));
                    build(state);
                    check(crashed / "run", passed);
                    ++num_states;
                    if (HasFailure()) return num_states;
                }
            }
            if (done == operations.size()) break;
            if (operations[done].is_mark) {
                passed.insert(operations[done].path);
            } else {
                disk.apply(operations[done]);
            }
        }
        return num_states;
    }

    TemporaryFolder root, other;
    fs::path run_path = root.path() / "run";
    fs::path crashed = other.path() / "crashed";

  private:
    static std::size_t hash_of(std::map<std::string, std::optional<std::string>> const& state) {
        std::string all;
        for (auto const& [path, content] : state) all += path + '\0' + (content ? *content : "/") + '\0';
        return std::hash<std::string>{}(all);
    }

    void build(std::map<std::string, std::optional<std::string>> const& state) {
        fs::remove_all(crashed);
        fs::create_directory(crashed);
        for (auto const& [path, content] : state) {  // folders come before what is in them
            fs::path const target = crashed / fs::relative(path, root.path());
            if (content) {
                std::ofstream(target, std::ios::binary) << *content;
            } else {
                fs::create_directory(target);
            }
        }
    }
};

std::int64_t newest(fs::path const& run, DamagedFiles damaged = DamagedFiles::leave) {
    ::testing::internal::CaptureStderr();
    std::int64_t step = -1;
    try {
        auto const found = checkpoint::CheckpointStore(run).read_newest_good(damaged);
        if (found) {
            EXPECT_TRUE(std::ranges::equal(found->file.bytes(), SavingRun::file_of(found->step)));
            step = found->step;
        }
    } catch (Error const& error) {
        ADD_FAILURE() << error.what();
    }
    ::testing::internal::GetCapturedStderr();
    return step;
}

bool has_row(fs::path const& ledger, std::int64_t step) {
    std::ifstream file(ledger);
    for (std::string line; std::getline(file, line);) {
        if (line == SavingRun::ledger_row(step)) return true;
    }
    return false;
}

std::size_t num_intact(fs::path const& run) {
    std::size_t count = 0;
    for (auto const& entry : checkpoint::CheckpointStore(run).list()) {
        if (checkpoint::read_file(entry.path, 1 << 20) == SavingRun::file_of(entry.step)) ++count;
    }
    return count;
}

/// The next launch goes on from what it finds.
void save_again(fs::path const& path, std::int64_t step) {
    SavingRun run(path);
    run.create();
    run.save(step);
    EXPECT_EQ(newest(path), step);
    EXPECT_TRUE(has_row(path / "ledger.jsonl", step));
    EXPECT_EQ(checkpoint::text_of(path / "metrics.csv"), SavingRun::metrics_of(step));
}

TEST_F(CrashStates, OfALaterSaveAreTheOldOrTheNewState) {
    SavingRun run(run_path);
    run.create();
    run.save(1);
    run.save(2);
    int num_old = 0, num_new = 0;
    int const num_states = for_every_state(
        [&] { run.save(3); },
        [&](fs::path const& after, std::set<std::string> const& passed) {
            std::int64_t const step = newest(after);
            if (passed.contains("committed")) {
                EXPECT_EQ(step, 3) << "acknowledged";
            } else {
                EXPECT_THAT(step, AnyOf(Eq(2), Eq(3)));
            }
            ++(step == 3 ? num_new : num_old);
            EXPECT_GE(num_intact(after), 2u);
            if (step == 3) {
                EXPECT_TRUE(has_row(after / "ledger.jsonl", 3)) << "a checkpoint without its ledger row";
            }
            EXPECT_TRUE(has_row(after / "ledger.jsonl", 1));
            EXPECT_TRUE(has_row(after / "ledger.jsonl", 2));
            std::string const metrics = checkpoint::text_of(after / "metrics.csv");
            if (passed.contains("metrics")) {
                EXPECT_EQ(metrics, SavingRun::metrics_of(3));
            } else {
                EXPECT_THAT(metrics, AnyOf(Eq(SavingRun::metrics_of(2)), Eq(SavingRun::metrics_of(3))));
            }
            EXPECT_EQ(newest(after, DamagedFiles::quarantine), step);
            save_again(after, step == 3 ? 4 : 3);
            EXPECT_TRUE(has_row(after / "ledger.jsonl", 2)) << "a torn row spoilt another";
        });
    EXPECT_GT(num_states, 50);
    EXPECT_GT(num_old, 20);
    EXPECT_GT(num_new, 20);
    std::printf("%d states: %d with the old checkpoint, %d with the new one\n", num_states, num_old, num_new);
}

TEST_F(CrashStates, OfTheFirstSaveAreNothingOrTheFirstState) {
    int num_states = for_every_state(
        [&] {
            SavingRun run(run_path);
            run.create();
            run.save(0);
        },
        [&](fs::path const& after, std::set<std::string> const& passed) {
            std::int64_t const step = newest(after);
            if (passed.contains("committed")) {
                EXPECT_EQ(step, 0) << "acknowledged";
            } else {
                EXPECT_THAT(step, AnyOf(Eq(-1), Eq(0)));
            }
            if (step == 0) {
                EXPECT_TRUE(has_row(after / "ledger.jsonl", 0));
            }
            save_again(after, step == 0 ? 1 : 0);
        });
    EXPECT_GT(num_states, 50);
    std::printf("%d states\n", num_states);
}

}  // namespace
}  // namespace holdfast::test
