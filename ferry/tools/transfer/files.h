// Files of `ferry transfer`: safe names, mapped input, atomic output and SHA-256.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "ferry/core/fd.h"
#include "ferry/core/result.h"
#include "ferry/tools/support/mapping.h"

namespace ferry::tools {

// The local name of a file that a peer names: the last component of its path. Errors:
// kInvalidArgument for a name without one ("", "a/", "..").
Result<std::string> BaseNameOf(std::string_view path);

// 64 lowercase hex digits.
std::string Sha256(std::span<const std::byte> bytes);

// An existing file, mapped for reading. The mapping lives as long as the object.
class SourceFile {
 public:
  // Errors: kInvalidArgument (not a regular file), kRefused (no permission).
  static Result<SourceFile> Open(const std::string& path);

  // Read-only despite the type, which registration requires. Empty for an empty file.
  std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  SourceFile(UniqueMapping mapping, std::span<std::byte> bytes)
      : mapping_(std::move(mapping)), bytes_(bytes) {}

  UniqueMapping mapping_;
  std::span<std::byte> bytes_;
};

// A file that is being received. It has no name until it is complete, so that an aborted process
// leaves nothing behind; on file systems without that feature it has a temporary name.
class IncomingFile {
 public:
  // `name`: from BaseNameOf. Errors: kUnavailable (no space), kRefused (no permission).
  static Result<IncomingFile> Create(const std::string& directory, const std::string& name,
                                     std::uint64_t size);
  IncomingFile(IncomingFile&& other) = default;
  IncomingFile& operator=(IncomingFile&&) = delete;
  // Deletes the file unless Keep() has succeeded.
  ~IncomingFile();

  std::span<std::byte> bytes() const noexcept { return bytes_; }
  // Blocks until the bytes are on disk.
  Status Flush();
  // Gives the file its name and replaces an existing file of that name.
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

// Whether files can be created in a folder. Errors: kInvalidArgument (it does not exist), kRefused
// (no permission).
Status CheckFolder(const std::string& path);

}  // namespace ferry::tools
