// Finds address, length and device of the bytes of a Python object and keeps the object alive.

#include "python/module/memory.h"

#include <fmt/core.h>
#include <linux/futex.h>
#include <nanobind/stl/string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "ferry/cuda/address.h"
#include "python/module/errors.h"

namespace ferry::python {
namespace {

namespace nb = nanobind;

[[noreturn]] void Refuse(const char* argument, const std::string& why) {
  throw Raised(Error(Code::kInvalidArgument, fmt::format("{}: {}", argument, why)));
}

std::string TypeName(nb::handle object) { return nb::type_name(object.type()).c_str(); }

// The message of the current Python exception, which is cleared.
std::string TakeErrorText() {
  const nb::python_error error;
  return nb::cast<std::string>(nb::str(error.value()));
}

// By the format of the buffer protocol (PEP 3118): 'O', but not in the name of a field, ":Out:".
bool HoldsObjects(const char* format) {
  bool in_name = false;
  for (; format != nullptr && *format != 0; ++format) {
    if (*format == ':') in_name = !in_name;
    if (*format == 'O' && !in_name) return true;
  }
  return false;
}

// NumPy's StringDType has no format, and refers to memory elsewhere.
bool RefersToObjects(const nb::object& object, const char* format) {
  if (HoldsObjects(format)) return true;
  const nb::object dtype = nb::getattr(object, "dtype", nb::none());
  return nb::cast<bool>(nb::bool_(nb::getattr(dtype, "hasobject", nb::bool_(false))));
}

// Adds zero to the word atomically, so that concurrent writers lose nothing; the kernel reports
// EFAULT for a read-only page. Works for memory of every kind, unlike madvise(2) with
// MADV_POPULATE_WRITE.
bool IsWritableWord(std::byte* byte) noexcept {
  constexpr std::uintptr_t kWord = sizeof(std::uint32_t);
  auto* const word = byte - reinterpret_cast<std::uintptr_t>(byte) % kWord;
  std::uint32_t unused = 0;
  const long result = ::syscall(SYS_futex, &unused, FUTEX_WAKE_OP_PRIVATE, 0, nullptr, word,
                                FUTEX_OP(FUTEX_OP_ADD, 0, FUTEX_OP_CMP_EQ, 0));
  return result >= 0 || errno != EFAULT;
}

}  // namespace

bool IsWritable(std::span<std::byte> bytes) noexcept {
  return bytes.empty() || (IsWritableWord(&bytes.front()) && IsWritableWord(&bytes.back()));
}

Memory::Memory(nb::handle object, Access access, const char* argument)
    : object_(nb::borrow(object)) {
  // In this order: GPU tensors of torch have a __cuda_array_interface__ as well, but not those that
  // require a gradient.
  if (!TakeTorch(access, argument) && !TakeCudaArray(argument)) TakeBuffer(argument);
  if (access == Access::kWrite && !writable_) {
    if (view_ != nullptr) PyBuffer_Release(view_.get());
    // The destructor of an object whose constructor throws does not run, so the view was released
    // above.
    Refuse(argument, fmt::format("{} is read-only, and would be written", TypeName(object_)));
  }
}

Memory::~Memory() {
  if (view_ != nullptr) PyBuffer_Release(view_.get());
}

bool Memory::writable() const noexcept {
  return writable_ && (!of_torch_ || ordinal_ != kHost || IsWritable(bytes_));
}

// Not by DLPack, which knows neither tensors that require a gradient nor all of torch's types.
bool Memory::TakeTorch(Access access, const char* argument) {
  for (const char* name : {"data_ptr", "element_size", "numel", "is_contiguous", "device"}) {
    if (!nb::hasattr(object_, name)) return false;
  }
  const nb::object refusal = nb::module_::import_("tensorferry._tensors").attr("refusal");
  const auto why = nb::cast<std::string>(refusal(object_, access == Access::kWrite));
  if (!why.empty()) Refuse(argument, why);
  const auto kind = nb::cast<std::string>(object_.attr("device").attr("type"));
  // A tensor of its own of the same storage, which stays when `object.data` is assigned.
  storage_ = object_.attr("detach")();
  const auto bytes = nb::cast<std::size_t>(storage_.attr("numel")()) *
                     nb::cast<std::size_t>(storage_.attr("element_size")());
  const auto address = nb::cast<std::uint64_t>(storage_.attr("data_ptr")());
  bytes_ = {cuda::PointerTo<std::byte>(address), bytes};
  of_torch_ = true;
  if (kind == "cuda") ordinal_ = nb::cast<int>(object_.attr("device").attr("index"));
  return true;
}

// https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html, version 3.
bool Memory::TakeCudaArray(const char* argument) {
  if (!nb::hasattr(object_, "__cuda_array_interface__")) return false;
  try {
    ReadCudaArray(argument);
  } catch (const Raised&) {
    throw;
  } catch (const std::exception& error) {
    Refuse(argument, fmt::format("its __cuda_array_interface__ cannot be read: {}", error.what()));
  }
  return true;
}

void Memory::ReadCudaArray(const char* argument) {
  const auto facts = nb::cast<nb::dict>(object_.attr("__cuda_array_interface__"));
  // (address, read-only).
  const auto data = nb::cast<nb::tuple>(facts["data"]);
  writable_ = !nb::cast<bool>(data[1]);
  // The interface says None for elements in C order, without gaps.
  if (facts.contains("strides") && !facts["strides"].is_none()) {
    Refuse(argument, "the array's elements do not follow each other; give a contiguous copy");
  }
  // The number behind the kind: "<f4" is of 4 bytes.
  const auto type = nb::cast<std::string>(facts["typestr"]);
  std::size_t bytes = std::stoul(type.substr(2));
  for (const nb::handle size : nb::cast<nb::tuple>(facts["shape"])) {
    bytes *= nb::cast<std::size_t>(size);
  }
  bytes_ = {cuda::PointerTo<std::byte>(nb::cast<std::uint64_t>(data[0])), bytes};
  ordinal_ = kUnknownGpu;
  if (nb::hasattr(object_, "device") && nb::hasattr(object_.attr("device"), "id")) {
    ordinal_ = nb::cast<int>(object_.attr("device").attr("id"));
  }
}

void* Memory::CurrentStream() const {
  if (of_torch_) {
    const nb::object current = nb::module_::import_("torch").attr("cuda").attr("current_stream");
    return cuda::PointerTo(
        nb::cast<std::uint64_t>(current(storage_.attr("device")).attr("cuda_stream")));
  }
  const auto facts = nb::cast<nb::dict>(object_.attr("__cuda_array_interface__"));
  if (!facts.contains("stream") || facts["stream"].is_none()) return nullptr;
  return cuda::PointerTo(nb::cast<std::uint64_t>(facts["stream"]));
}

void Memory::AwaitCurrentStream() const {
  if (of_torch_) {
    const nb::object current = nb::module_::import_("torch").attr("cuda").attr("current_stream");
    current(storage_.attr("device")).attr("synchronize")();
  } else if (nb::hasattr(object_, "device") && nb::hasattr(object_.attr("device"), "synchronize")) {
    object_.attr("device").attr("synchronize")();
  }
}

void Memory::TakeBuffer(const char* argument) {
  auto view = std::make_unique<Py_buffer>();
  if (PyObject_CheckBuffer(object_.ptr()) == 0) {
    Refuse(argument, fmt::format("{} has no bytes; give a NumPy array, a torch tensor or an object "
                                 "with the buffer protocol",
                                 TypeName(object_)));
  }
  // Contiguous in any order of its sizes. Some types have no format.
  constexpr int kWays[] = {PyBUF_ANY_CONTIGUOUS | PyBUF_WRITABLE | PyBUF_FORMAT,
                           PyBUF_ANY_CONTIGUOUS | PyBUF_WRITABLE,
                           PyBUF_ANY_CONTIGUOUS | PyBUF_FORMAT, PyBUF_ANY_CONTIGUOUS};
  // Writable first, because the caller's wish is checked later, with an error that names the
  // argument. The view stays until the end: while an object exports one, it may not move its bytes.
  bool taken = false;
  for (const int way : kWays) {
    PyErr_Clear();
    taken = PyObject_GetBuffer(object_.ptr(), view.get(), way) == 0;
    if (taken) break;
  }
  if (!taken) {
    Refuse(argument, fmt::format("the bytes of {} cannot be had in one piece: {}",
                                 TypeName(object_), TakeErrorText()));
  }
  view_ = std::move(view);
  writable_ = view_->readonly == 0;
  bytes_ = {static_cast<std::byte*>(view_->buf), static_cast<std::size_t>(view_->len)};
  if (!RefersToObjects(object_, view_->format)) return;
  PyBuffer_Release(view_.get());
  Refuse(argument,
         fmt::format("{} holds Python objects or text, whose bytes mean nothing elsewhere",
                     TypeName(object_)));
}

}  // namespace ferry::python
