// Bytes of a Python object: of any object with the buffer protocol (NumPy arrays, bytearray,
// mmap), of a torch tensor on the host or a GPU, or of any object with __cuda_array_interface__
// (CuPy). Keeps the object, and so the bytes, alive; a resizable object cannot be resized
// meanwhile.
#pragma once
#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace ferry::python {

// Whether the kernel lets this process write these bytes of host memory. Tries only the first and
// the last byte.
bool IsWritable(std::span<std::byte> bytes) noexcept;

class Memory {
 public:
  enum class Access : bool { kRead, kWrite };

  // Errors, as Python exceptions: InvalidArgument naming `argument`, for an object that has no
  // bytes, whose bytes do not follow each other, or that may not be written and is to be.
  Memory(nanobind::handle object, Access access, const char* argument);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::span<std::byte> bytes() const noexcept { return bytes_; }
  bool writable() const noexcept;
  static constexpr int kHost = -1;
  static constexpr int kUnknownGpu = -2;
  int ordinal() const noexcept { return ordinal_; }  // of the GPU, or one of these
  // The stream that the library of GPU memory puts work on now: torch's current one; else what the
  // array says, or null, the default stream.
  void* CurrentStream() const;
  // Until what that has queued is done; of what is not torch's until the whole GPU is.
  void AwaitCurrentStream() const;
  nanobind::object object() const { return object_; }

 private:
  bool TakeTorch(Access access, const char* argument);
  bool TakeCudaArray(const char* argument);
  void ReadCudaArray(const char* argument);
  void TakeBuffer(const char* argument);

  nanobind::object object_;
  nanobind::object storage_;         // of a torch tensor, which may be given another
  std::unique_ptr<Py_buffer> view_;  // null where the bytes are not those of a buffer
  std::span<std::byte> bytes_;
  bool writable_ = true;
  int ordinal_ = kHost;
  bool of_torch_ = false;
};

}  // namespace ferry::python
