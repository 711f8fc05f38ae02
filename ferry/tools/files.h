// Files of `ferry transfer`: safe names, mapped input, atomic output and SHA-256.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "ferry/core/fd.h"
#include "ferry/core/result.h"
#include "ferry/tools/mapping.h"

namespace ferry::tools {

// What a file that a peer names may be called here: the last part of its path. Errors:
// kInvalidArgument for a name without one ("", "a/", "..").
Result<std::string> BaseNameOf(std::string_view path);

// 64 lowercase hex digits.
std::string Sha256(std::span<const std::byte> bytes);

// An existing file, mapped for reading.
class SourceFile {
 public:
  // Errors: kInvalidArgument (not a regular file), kRefused (no permission).
  static Result<SourceFile> Open(const std::string& path);

  // Not writable in spite of the type, which is that of registered memory. Empty for an empty file.
  std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  SourceFile(UniqueMapping mapping, std::span<std::byte> bytes)
      : mapping_(std::move(mapping)), bytes_(bytes) {}

  UniqueMapping mapping_;
  std::span<std::byte> bytes_;
};

// A file that is being received: without a name until it is whole, so that nothing is left where
// the process ends before; on file systems that cannot do that, under a temporary one.
class IncomingFile {
 public:
  // `name`: from BaseNameOf. Errors: kUnavailable (no space), kRefused (no permission).
  static Result<IncomingFile> Create(const std::string& directory, const std::string& name,
                                     std::uint64_t size);
  IncomingFile(IncomingFile&& other) = default;
  IncomingFile& operator=(IncomingFile&&) = delete;
  // What was not kept goes.
  ~IncomingFile();

  std::span<std::byte> bytes() const noexcept { return bytes_; }
  // Waits until it is on the disk.
  Status Flush();
  // Gives it its name, in place of a file that has that already.
  Status Keep();

 private:
  IncomingFile(UniqueFd directory, std::string name);
  Status Open();
  Status OpenNamed();
  Status Reserve(std::uint64_t size);

  UniqueFd directory_;
  std::string name_;
  std::string temporary_;  // empty: it has none
  UniqueFd file_;
  UniqueMapping mapping_;
  std::span<std::byte> bytes_;
};

// Whether files can be put into a folder. Errors: kInvalidArgument (there is none), kRefused (no
// permission).
Status CheckFolder(const std::string& path);

}  // namespace ferry::tools
