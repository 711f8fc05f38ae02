// Binds the staging ring: small inputs of a step, written by the host and copied to a GPU at once.

#include "python/module/staging.h"

#include <fmt/core.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/cuda/address.h"
#include "ferry/cuda/device_api.h"
#include "ferry/cuda/open_devices.h"
#include "python/module/errors.h"
#include "python/module/staged_numbers.h"
#include "python/module/waiting.h"

namespace ferry::python {
namespace {

namespace nb = nanobind;

// In the order of their places in a slot.
enum Field : unsigned char {
  kInputIds,
  kPositions,
  kSlotMapping,
  kContextLens,
  kTemperatures,
  kBlockTables,
  kFields
};

struct Shape {
  std::int64_t max_batch;
  std::int64_t max_blocks;
  std::int64_t block_size;
};

// A length that no table has: what the row holds is not known.
constexpr Py_ssize_t kNotWritten = -1;

// A place of the ring. Its memory remembers the blocks of its tables itself.
struct RingSlot {
  std::byte* bytes = nullptr;
  cuda::Event event;                // behind its last copy; none where copies end at once
  std::vector<Py_ssize_t> lengths;  // of the table in each row
  bool in_doubt = false;            // a copy may be in flight that no event tells of
};

struct Sequences {
  Items tokens;
  Items lengths;
  Items tables;
  std::optional<Items> temperatures;
};

class Flagged {
 public:
  explicit Flagged(bool* flag) : flag_(flag) { *flag_ = true; }
  ~Flagged() { *flag_ = false; }
  Flagged(const Flagged&) = delete;
  Flagged& operator=(const Flagged&) = delete;

 private:
  bool* const flag_;
};

[[noreturn]] void RefuseStep(std::string why) {
  throw Raised(Error(Code::kInvalidArgument, "DecodeInputs: " + std::move(why)));
}

// The address of the memory as a number, because the CPU cannot access all of it.
struct Addresses {
  std::uint64_t device;  // 0: steps are written to slots, and somebody else copies them
  std::vector<std::uint64_t> slots;
  std::array<std::uint64_t, kFields> starts;  // of fields in either
};

class Decode {
 public:
  // `ordinal` -1: the memory is the CPU's. Keeps `memory`, the owner of all that is addressed.
  Decode(Addresses addresses, Shape shape, int ordinal, nb::object memory)
      : addresses_(std::move(addresses)),
        shape_(shape),
        ordinal_(ordinal),
        memory_(std::move(memory)) {
    if (ordinal >= 0) api_ = Take(cuda::OpenDevices(Take(Config::FromEnvironment())));
    for (const std::uint64_t address : addresses_.slots) {
      RingSlot slot;
      slot.bytes = cuda::PointerTo<std::byte>(address);
      slot.lengths.assign(static_cast<std::size_t>(shape.max_batch), kNotWritten);
      if (api_ != nullptr) slot.event = Take(api_->CreateEvent(ordinal, cuda::EventTiming::kOff));
      slots_.push_back(std::move(slot));
    }
  }
  Decode(const Decode&) = delete;
  Decode& operator=(const Decode&) = delete;

  // Whoever owns the memory does not know of our copies, and would give it to others at once.
  ~Decode() {
    const Deadline deadline = Deadline::After(std::chrono::seconds(60));
    for (RingSlot& slot : slots_) {
      if (api_ == nullptr || api_->IsLost(ordinal_)) break;
      if (slot.in_doubt) {
        (void)memory_.release();
        return;
      }
      if (const auto ended = api_->Query(slot.event); ended && *ended) continue;
      const Status waited = [&] {
        const OthersGoOn others_go_on(std::nothrow);
        return api_->Wait(slot.event, deadline);
      }();
      if (!waited && waited.error().code() == Code::kTimedOut) {
        (void)memory_.release();
        return;
      }
    }
  }

  // Returns how many sequences there are.
  // NOLINTNEXTLINE(readability-function-size): the parameters that Python names
  Py_ssize_t Stage(std::uint64_t stream, nb::handle tokens, nb::handle lengths, nb::handle tables,
                   nb::handle temperatures, std::int64_t padded_to) {
    if (busy_) RefuseStep("stage() was called while it runs; call it from one thread at a time");
    // Numbers may be objects whose own code runs here, and with it other threads or a nested call.
    const Flagged busy(&busy_);
    Sequences step{Items(tokens, "tokens"), Items(lengths, "lengths"), Items(tables, "tables"), {}};
    if (!temperatures.is_none()) step.temperatures.emplace(temperatures, "temperatures");
    const Py_ssize_t count = CheckCounts(step, padded_to);
    if (step.temperatures && step.temperatures->size() == 0) step.temperatures.reset();
    RingSlot& slot = slots_[turn_];
    // Before anything is written: the slot's last copy may still read it.
    Await(slot);
    for (Py_ssize_t row = 0; row < count; ++row) WriteSequence(&slot, step, row);
    ClearRows(slot, count);
    Send(&slot, stream, count);
    // Only after success: a step that failed is staged again in the same slot.
    turn_ = (turn_ + 1) % slots_.size();
    return count;
  }

  std::size_t turn() const { return turn_; }
  std::uint64_t rows_written() const { return rows_written_; }
  double timeout = 60;  // seconds for a copy to end

 private:
  template <class T>
  T* FieldOf(const RingSlot& slot, Field field) const {
    return static_cast<T*>(static_cast<void*>(slot.bytes + addresses_.starts.at(field)));
  }

  Py_ssize_t CheckCounts(const Sequences& step, std::int64_t padded_to) const {
    const Py_ssize_t count = step.tokens.size();
    if (count < 1 || count > shape_.max_batch || padded_to > shape_.max_batch) {
      RefuseStep(fmt::format("{} sequences, padded to {}; there is room for 1 to {}", count,
                             padded_to, shape_.max_batch));
    }
    const Py_ssize_t heat = step.temperatures ? step.temperatures->size() : 0;
    if (step.lengths.size() != count || step.tables.size() != count ||
        (heat != 0 && heat != count)) {
      RefuseStep(
          fmt::format("{} tokens, {} lengths, {} tables and {} temperatures; each sequence "
                      "has one of each",
                      count, step.lengths.size(), step.tables.size(), heat));
    }
    return count;
  }

  void Await(const RingSlot& slot) {
    if (slot.in_doubt) {
      RefuseStep(
          "a copy failed after it may have begun, and nothing tells when it ends; make it anew");
    }
    if (api_ == nullptr || Take(api_->Query(slot.event))) return;
    const Status waited = WaitInParts(DeadlineOf(timeout),
                                      [&](Deadline part) { return api_->Wait(slot.event, part); });
    if (!waited && waited.error().code() == Code::kTimedOut) {
      throw Raised(Error(Code::kTimedOut,
                         fmt::format("Staging: a copy to the GPU has not ended in {:.0f} s; what "
                                     "is queued before it on its stream does not end",
                                     timeout)));
    }
    Check(waited);
  }

  void WriteSequence(RingSlot* slot, const Sequences& step, Py_ssize_t row) {
    const Py_ssize_t blocks = WriteTable(slot, step.tables.At(row), row);
    const std::int64_t length = Int64Of(step.lengths.At(row), {"length", row});
    const std::int64_t size = shape_.block_size;
    const std::int64_t position = length < 1 ? 0 : length - 1;
    if (length < 1 || position / size >= blocks) {
      RefuseStep(
          fmt::format("sequence {} has {} tokens and {} blocks of {}; it needs 1 token or "
                      "more, and a block for each {}",
                      row, length, blocks, size, size));
    }
    const std::int64_t block =
        FieldOf<std::int32_t>(*slot, kBlockTables)[row * shape_.max_blocks + position / size];
    FieldOf<std::int64_t>(*slot, kInputIds)[row] = Int64Of(step.tokens.At(row), {"token", row});
    FieldOf<std::int64_t>(*slot, kPositions)[row] = position;
    FieldOf<std::int32_t>(*slot, kSlotMapping)[row] =
        FitInt32(block * size + position % size, {"slot", row});
    FieldOf<std::int32_t>(*slot, kContextLens)[row] = FitInt32(length, {"length", row});
    FieldOf<float>(*slot, kTemperatures)[row] =
        step.temperatures ? FloatOf(step.temperatures->At(row), {"temperature", row}) : 0.0F;
  }

  // Only from the first block on that is not what the row holds: seldom one, as blocks fill up
  // slowly.
  Py_ssize_t WriteTable(RingSlot* slot, nb::handle table, Py_ssize_t row) {
    constexpr const char* kWhat = "table";
    const Items items(table, kWhat, row);
    const Py_ssize_t blocks = items.size();
    if (blocks > shape_.max_blocks) {
      RefuseStep(
          fmt::format("sequence {} has {} blocks; there is room for {}: make DecodeInputs "
                      "of more (nano-vllm: a greater max_model_len)",
                      row, blocks, shape_.max_blocks));
    }
    std::int32_t* const into = FieldOf<std::int32_t>(*slot, kBlockTables) + row * shape_.max_blocks;
    Py_ssize_t& held = slot->lengths[static_cast<std::size_t>(row)];
    const Py_ssize_t before = std::exchange(held, kNotWritten);
    bool changed = before != blocks;
    for (Py_ssize_t i = 0; i < blocks; ++i) {
      const std::int32_t block = Int32Of(items.At(i), {"block table's entry", row});
      changed = changed || into[i] != block;
      if (changed) into[i] = block;
    }
    if (changed) {
      std::fill(into + blocks, into + shape_.max_blocks, -1);
      ++rows_written_;
    }
    held = blocks;
    return blocks;
  }

  // All rows beyond the sequences store nothing (slot -1) and attend to nothing (length 0): a graph
  // may have been captured over any number of them, whatever the caller says it pads to.
  void ClearRows(const RingSlot& slot, Py_ssize_t count) const {
    const auto fill = [&](auto* field, auto value) {
      std::fill(field + count, field + shape_.max_batch, value);
    };
    fill(FieldOf<std::int32_t>(slot, kSlotMapping), std::int32_t{-1});
    fill(FieldOf<std::int64_t>(slot, kInputIds), std::int64_t{0});
    fill(FieldOf<std::int64_t>(slot, kPositions), std::int64_t{0});
    fill(FieldOf<std::int32_t>(slot, kContextLens), std::int32_t{0});
    fill(FieldOf<float>(slot, kTemperatures), 0.0F);
  }

  void Send(RingSlot* slot, std::uint64_t stream, Py_ssize_t count) {
    if (addresses_.device == 0) return;
    const std::size_t bytes =
        addresses_.starts[kBlockTables] +
        static_cast<std::size_t>(count * shape_.max_blocks) * sizeof(std::int32_t);
    if (api_ == nullptr) {
      std::memcpy(cuda::PointerTo(addresses_.device), slot->bytes, bytes);
      return;
    }
    const auto on = cuda::StreamRef::Foreign(ordinal_, cuda::PointerTo(stream));
    const cuda::CopyItem item{cuda::PointerTo(addresses_.device), slot->bytes, bytes};
    const Status sent = [&]() -> Status {
      const OthersGoOn others_go_on;  // CUDA waits where a device's queue is full
      // Until the event is recorded, nothing tells when the copy has ended.
      slot->in_doubt = true;
      FERRY_TRY(api_->Copy(on, cuda::CopyKind::kHostToDevice, {&item, 1}));
      return api_->Record(slot->event, on);
    }();
    slot->in_doubt = !sent;
    Check(sent);
  }

  const Addresses addresses_;
  const Shape shape_;
  const int ordinal_;
  nb::object memory_;
  cuda::DeviceApi* api_ = nullptr;
  std::vector<RingSlot> slots_;
  std::size_t turn_ = 0;
  std::uint64_t rows_written_ = 0;
  bool busy_ = false;  // under the interpreter's lock
};

// A device's memory, pinned slots and a stream without torch: what Decode is tried with on
// simulated devices.
class TrialMemory {
 public:
  TrialMemory(int ordinal, std::size_t bytes, std::size_t slots)
      : api_(Take(cuda::OpenDevices(Take(Config::FromEnvironment())))),
        memory_(Take(api_->AllocateDevice(ordinal, bytes))),
        back_(Take(api_->AllocatePinned(ordinal, bytes))),
        stream_(Take(api_->CreateStream(ordinal, cuda::StreamPriority::kNormal))) {
    while (slots_.size() < slots) slots_.push_back(Take(api_->AllocatePinned(ordinal, bytes)));
  }

  std::uint64_t address() const { return cuda::AddressOf(memory_.data()); }
  std::uint64_t stream() const { return cuda::AddressOf(stream_.get().native); }
  std::vector<std::uint64_t> slots() const {
    std::vector<std::uint64_t> addresses;
    for (const auto& slot : slots_) addresses.push_back(cuda::AddressOf(slot.data()));
    return addresses;
  }
  // The contents of the memory once all earlier work has ended.
  nb::bytes Read() {
    const cuda::CopyItem item{back_.data(), memory_.data(), back_.size()};
    Check(api_->Copy(stream_, cuda::CopyKind::kDeviceToHost, {&item, 1}));
    Check(WaitInParts(Deadline::After(std::chrono::seconds(60)),
                      [&](Deadline part) { return api_->Wait(stream_, part); }));
    return nb::bytes(back_.data(), back_.size());
  }

 private:
  cuda::DeviceApi* const api_;
  cuda::DeviceBuffer memory_;
  cuda::PinnedBuffer back_;
  std::vector<cuda::PinnedBuffer> slots_;
  cuda::Stream stream_;
};

}  // namespace

void BindStaging(nb::module_& module) {
  nb::module_ staging = module.def_submodule("staging");
  nb::class_<Decode>(staging, "Decode", "The native part of tensorferry.staging.DecodeInputs.")
      .def(
          "__init__",
          [](Decode* self, std::pair<std::uint64_t, std::vector<std::uint64_t>> memory_and_slots,
             const std::array<std::uint64_t, kFields>& starts,
             const std::array<std::int64_t, 3>& shape, int device, nb::object keep) {
            if (memory_and_slots.second.empty()) RefuseStep("there are no slots; give 1 or more");
            new (self) Decode({memory_and_slots.first, std::move(memory_and_slots.second), starts},
                              {shape[0], shape[1], shape[2]}, device, std::move(keep));
          },
          nb::arg("memory_and_slots"), nb::arg("starts"), nb::arg("shape"), nb::arg("device"),
          nb::arg("keep").none())
      .def("stage", &Decode::Stage, nb::arg("stream"), nb::arg("tokens"), nb::arg("lengths"),
           nb::arg("tables"), nb::arg("temperatures").none(), nb::arg("padded_to"),
           "Returns how many sequences there are.")
      .def_prop_ro("turn", &Decode::turn, "The turn of the slot that comes next.")
      .def_prop_ro("rows_written", &Decode::rows_written, "Rows of tables, in all.")
      .def_rw("timeout", &Decode::timeout, "Seconds for a copy to end.");
  nb::class_<TrialMemory>(staging, "TrialMemory", "For tests on simulated devices.")
      .def(nb::init<int, std::size_t, std::size_t>(), nb::arg("device"), nb::arg("nbytes"),
           nb::arg("slots"))
      .def_prop_ro("address", &TrialMemory::address)
      .def_prop_ro("stream", &TrialMemory::stream)
      .def_prop_ro("slots", &TrialMemory::slots)
      .def("read", &TrialMemory::Read);
}

}  // namespace ferry::python
