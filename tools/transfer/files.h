// Files of `ferry transfer`: input that may change meanwhile, atomic output and SHA-256. No file is
// mapped: a mapping of a file that shrinks, or of one on a full disk, ends the program by SIGBUS.
#pragma once
#include <openssl/types.h>
#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ferry/core/fd.h"
#include "ferry/core/result.h"

namespace ferry::tools {

// SHA-256 of bytes that come part by part.
class Digest {
 public:
  Digest();
  void Add(std::span<const std::byte> bytes);
  // 64 lowercase hex digits. Call once, as the last.
  std::string Finish();

 private:
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_;
};
std::string Sha256(std::span<const std::byte> bytes);

// An existing file, open for reading.
class SourceFile {
 public:
  // Errors: kInvalidArgument (not a regular file), kRefused (no permission).
  static Result<SourceFile> Open(const std::string& path);

  // When it was opened.
  std::uint64_t size() const noexcept { return static_cast<std::uint64_t>(opened_.st_size); }
  // Fills `into` with the bytes from offset `at` on. Errors: kUnavailable where the file has ended.
  Status Read(std::uint64_t at, std::span<std::byte> into) const;
  // Whether size and time of the last change are still those of Open(). Errors: kUnavailable.
  Status CheckUnchanged() const;

 private:
  SourceFile(std::string path, UniqueFd file, const struct stat& opened)
      : path_(std::move(path)), file_(std::move(file)), opened_(opened) {}

  std::string path_;
  UniqueFd file_;
  struct stat opened_;
};

// What happens to an existing file of the same name.
enum class Existing : std::uint8_t { kKept, kReplaced };

// A file that is being received. It has no name until it is complete, so that an aborted process
// leaves nothing behind; on file systems without that feature it has a temporary name.
class IncomingFile {
 public:
  // `name`: from BaseNameOf. Errors: kUnavailable (no space), kRefused (no permission, or there is
  // such a file, which is kept).
  static Result<IncomingFile> Create(const std::string& directory, const std::string& name,
                                     std::uint64_t size, Existing existing);
  IncomingFile(IncomingFile&& other) = default;
  IncomingFile& operator=(IncomingFile&&) = delete;
  // Deletes the file unless Keep() has succeeded.
  ~IncomingFile();

  // Errors: kUnavailable (no space).
  Status Write(std::uint64_t at, std::span<const std::byte> bytes);
  // Blocks until the bytes are on disk.
  Status Flush();
  // Gives the file its name, and blocks until that is on disk. Errors: kRefused where an existing
  // file of that name is kept.
  Status Keep();

 private:
  IncomingFile(UniqueFd directory, std::string folder, std::string name, Existing existing);
  Status Open();
  Status OpenNamed();
  Status CheckName() const;
  Status CheckSpace(std::uint64_t size) const;
  int Link(const std::string& name) const;
  Status Name();
  Error Exists() const;

  UniqueFd directory_;
  std::string folder_;  // the path of directory_
  std::string name_;
  Existing existing_;
  std::string temporary_;  // empty: it has none
  UniqueFd file_;
};

// Whether files can be created in a folder. Errors: kInvalidArgument (it does not exist), kRefused
// (no permission).
Status CheckFolder(const std::string& path);

}  // namespace ferry::tools
