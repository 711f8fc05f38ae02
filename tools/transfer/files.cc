// Implements input files, received files and their checksums.

#include "tools/transfer/files.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <openssl/evp.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/core/random.h"
#include "ferry/core/units.h"
#include "tools/support/json.h"

namespace ferry::tools {
namespace {

constexpr mode_t kMode = 0666;  // less the umask
constexpr const char* kOpenFiles = "/proc/self/fd";

std::string TemporaryName() { return fmt::format(".ferry-{}.part", Uuid::Random().ToString()); }

Error FileError(std::string_view what, std::string_view name, int error) {
  const std::string text = fmt::format("{} {}", what, name);
  // A full or broken disk is not a wrong call.
  if (error != ENOSPC && error != EDQUOT && error != EFBIG && error != EIO) {
    return ErrnoError(text, error);
  }
  return Error(Code::kUnavailable, ErrnoError(text, error).message());
}

}  // namespace

// ---- Digest -------------------------------------------------------------------------------------

Digest::Digest() : context_(::EVP_MD_CTX_new(), ::EVP_MD_CTX_free) {
  FERRY_CHECK(context_ && ::EVP_DigestInit_ex(context_.get(), ::EVP_sha256(), nullptr) == 1);
}

void Digest::Add(std::span<const std::byte> bytes) {
  FERRY_CHECK(::EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
}

std::string Digest::Finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  FERRY_CHECK(::EVP_DigestFinal_ex(context_.get(), digest.data(), &size) == 1);
  return ToHex(std::as_bytes(std::span(digest)).first(size));
}

std::string Sha256(std::span<const std::byte> bytes) {
  Digest digest;
  digest.Add(bytes);
  return digest.Finish();
}

// ---- SourceFile ---------------------------------------------------------------------------------

Result<SourceFile> SourceFile::Open(const std::string& path) {
  // Without blocking, because the path may be a pipe that nobody writes to.
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return FileError("opening", path, errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return FileError("looking at", path, errno);
  if (!S_ISREG(status.st_mode)) {
    return Error(Code::kInvalidArgument, fmt::format("{} is not a regular file", path));
  }
  return SourceFile(path, std::move(file), status);
}

Status SourceFile::Read(std::uint64_t at, std::span<std::byte> into) const {
  while (!into.empty()) {
    const ssize_t got = ::pread(file_.get(), into.data(), into.size(), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError("reading", path_, errno);
    if (got == 0) {
      return Error(Code::kUnavailable,
                   fmt::format("{} changed while it was sent: it had {} bytes, and ends after {}; "
                               "send it again when nothing writes it",
                               path_, size(), at));
    }
    at += static_cast<std::uint64_t>(got);
    into = into.subspan(static_cast<std::size_t>(got));
  }
  return Ok();
}

Status SourceFile::CheckUnchanged() const {
  struct stat now {};
  if (::fstat(file_.get(), &now) != 0) return FileError("looking at", path_, errno);
  const bool same = now.st_size == opened_.st_size &&
                    now.st_mtim.tv_sec == opened_.st_mtim.tv_sec &&
                    now.st_mtim.tv_nsec == opened_.st_mtim.tv_nsec;
  if (same) return Ok();
  return Error(Code::kUnavailable,
               fmt::format("{} changed while it was sent: it had {} bytes and has {}, or other "
                           "contents; send it again when nothing writes it",
                           path_, size(), now.st_size));
}

// ---- IncomingFile -------------------------------------------------------------------------------

IncomingFile::IncomingFile(UniqueFd directory, std::string folder, std::string name,
                           Existing existing)
    : directory_(std::move(directory)),
      folder_(std::move(folder)),
      name_(std::move(name)),
      existing_(existing) {}

Result<IncomingFile> IncomingFile::Create(const std::string& directory, const std::string& name,
                                          std::uint64_t size, Existing existing) {
  UniqueFd opened(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened) return FileError("opening directory", directory, errno);
  IncomingFile file(std::move(opened), directory, name, existing);
  FERRY_TRY(file.CheckName());
  FERRY_TRY(file.CheckSpace(size));
  FERRY_TRY(file.Open());
  return file;
}

// By what a file would need: one without a name, which goes again.
Status CheckFolder(const std::string& path) {
  FERRY_TRY(IncomingFile::Create(path, TemporaryName(), 0, Existing::kReplaced));
  return Ok();
}

Error IncomingFile::Exists() const {
  return Error(Code::kRefused,
               fmt::format("{} exists in {} already; start the server with --overwrite to replace "
                           "it, or send the file under another name",
                           name_, folder_));
}

// Before any byte comes; Name() looks again.
Status IncomingFile::CheckName() const {
  struct stat status {};
  if (::fstatat(directory_.get(), name_.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    return errno == ENOENT ? Ok() : Status(FileError("looking for", name_, errno));
  }
  if (existing_ == Existing::kKept) return Exists();
  return S_ISDIR(status.st_mode) ? Status(FileError("replacing", name_, EISDIR)) : Ok();
}

// The space is not reserved, so that a client that stays silent has none of it.
Status IncomingFile::CheckSpace(std::uint64_t size) const {
  if (size > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max())) {
    return FileError("making room for", name_, EFBIG);
  }
  struct statvfs disk {};
  // Some file systems do not know how large they are.
  if (::fstatvfs(directory_.get(), &disk) != 0 || disk.f_blocks == 0) return Ok();
  __extension__ using Wide = unsigned __int128;
  const Wide available = Wide{disk.f_bavail} * disk.f_frsize;
  if (size <= available) return Ok();
  return Error(Code::kUnavailable,
               fmt::format("{} has {} bytes, and {} has room for {}; free some space", name_, size,
                           folder_, static_cast<std::uint64_t>(available)));
}

Status IncomingFile::Open() {
  // It is named by way of /proc in the end.
  if (::access(kOpenFiles, X_OK) == 0) {
    file_ = UniqueFd(::openat(directory_.get(), ".", O_RDWR | O_TMPFILE | O_CLOEXEC, kMode));
  }
  return file_ ? Ok() : OpenNamed();
}

Status IncomingFile::OpenNamed() {
  const std::string temporary = TemporaryName();
  file_ = UniqueFd(::openat(directory_.get(), temporary.c_str(),
                            O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kMode));
  if (!file_) return FileError("creating", temporary, errno);
  temporary_ = temporary;
  return Ok();
}

IncomingFile::~IncomingFile() {
  if (!temporary_.empty()) (void)::unlinkat(directory_.get(), temporary_.c_str(), 0);
}

Status IncomingFile::Write(std::uint64_t at, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return FileError("writing", name_, errno);
    at += static_cast<std::uint64_t>(put);
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
  return Ok();
}

Status IncomingFile::Flush() {
  if (::fsync(file_.get()) != 0) return FileError("writing", name_, errno);
  return Ok();
}

// Gives the file one more name; replaces nothing. The result is that of linkat(2).
int IncomingFile::Link(const std::string& name) const {
  const int folder = directory_.get();
  if (!temporary_.empty()) {
    return ::linkat(folder, temporary_.c_str(), folder, name.c_str(), 0);
  }
  const std::string open = fmt::format("{}/{}", kOpenFiles, file_.get());
  return ::linkat(AT_FDCWD, open.c_str(), folder, name.c_str(), AT_SYMLINK_FOLLOW);
}

Status IncomingFile::Name() {
  const int folder = directory_.get();
  if (existing_ == Existing::kReplaced && temporary_.empty()) {
    const std::string temporary = TemporaryName();
    if (Link(temporary) != 0) return FileError("naming", name_, errno);
    temporary_ = temporary;
  }
  // The destructor removes a temporary name that is left.
  if (existing_ == Existing::kKept && Link(name_) == 0) return Ok();
  // FAT has no links.
  const bool renames = existing_ == Existing::kReplaced || (errno == EPERM && !temporary_.empty());
  const unsigned flags = existing_ == Existing::kKept ? RENAME_NOREPLACE : 0;
  if (renames && ::renameat2(folder, temporary_.c_str(), folder, name_.c_str(), flags) == 0) {
    temporary_.clear();
    return Ok();
  }
  return errno == EEXIST && existing_ == Existing::kKept ? Exists()
                                                         : FileError("naming", name_, errno);
}

Status IncomingFile::Keep() {
  FERRY_TRY(Name());
  if (::fsync(directory_.get()) != 0) return FileError("writing folder", folder_, errno);
  return Ok();
}

}  // namespace ferry::tools
