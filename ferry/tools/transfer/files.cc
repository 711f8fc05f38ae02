// Implements mapped input files, received files and their checksums.

#include "ferry/tools/transfer/files.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <openssl/evp.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/core/random.h"
#include "ferry/tools/support/json.h"

namespace ferry::tools {
namespace {

constexpr mode_t kMode = 0666;  // less the umask
constexpr const char* kOpenFiles = "/proc/self/fd";

std::string TemporaryName() { return fmt::format(".ferry-{}.part", Uuid::Random().ToString()); }

Error FileError(std::string_view what, std::string_view name, int error) {
  const std::string text = fmt::format("{} {}", what, name);
  // A full disk is not a wrong call: it may work later.
  if (error != ENOSPC && error != EDQUOT && error != EFBIG) return ErrnoError(text, error);
  return Error(Code::kUnavailable, ErrnoError(text, error).message());
}

Result<UniqueMapping> MapFile(int fd, std::uint64_t size, int protection, std::string_view name) {
  if (size == 0) return UniqueMapping();
  void* const at = ::mmap(nullptr, size, protection, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return FileError("mapping", name, errno);
  return UniqueMapping(Mapping{at, size});
}

std::span<std::byte> BytesOf(const UniqueMapping& mapping) {
  return {static_cast<std::byte*>(mapping.get().at), mapping.get().bytes};
}

}  // namespace

// The name comes from a client: no folder of it is used, and none is left by "..".
Result<std::string> BaseNameOf(std::string_view path) {
  std::string name(path.substr(path.find_last_of("/\\") + 1));
  const bool usable =
      !name.empty() && name != "." && name != ".." && name.find('\0') == std::string::npos;
  if (usable) return name;
  return Error(Code::kInvalidArgument, fmt::format("\"{}\" is not a valid file name", path));
}

std::string Sha256(std::span<const std::byte> bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  const int done =
      ::EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, ::EVP_sha256(), nullptr);
  FERRY_CHECK(done == 1);
  return ToHex(std::as_bytes(std::span(digest)).first(size));
}

// ---- SourceFile ---------------------------------------------------------------------------------

Result<SourceFile> SourceFile::Open(const std::string& path) {
  // Without blocking, because the path may be a pipe that nobody writes to.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return FileError("opening", path, errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return FileError("looking at", path, errno);
  if (!S_ISREG(status.st_mode)) {
    return Error(Code::kInvalidArgument, fmt::format("{} is not a regular file", path));
  }
  FERRY_TRY_ASSIGN(
      UniqueMapping mapping,
      MapFile(file.get(), static_cast<std::uint64_t>(status.st_size), PROT_READ, path));
  const auto bytes = BytesOf(mapping);
  return SourceFile(std::move(mapping), bytes);
}

// ---- IncomingFile -------------------------------------------------------------------------------

IncomingFile::IncomingFile(UniqueFd directory, std::string name)
    : directory_(std::move(directory)), name_(std::move(name)) {}

Result<IncomingFile> IncomingFile::Create(const std::string& directory, const std::string& name,
                                          std::uint64_t size) {
  UniqueFd opened(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened) return FileError("opening directory", directory, errno);
  IncomingFile file(std::move(opened), name);
  FERRY_TRY(file.Open());
  FERRY_TRY(file.Reserve(size));
  return file;
}

// By what a file would need: one without a name, which goes again.
Status CheckFolder(const std::string& path) {
  FERRY_TRY(IncomingFile::Create(path, "check", 0));
  return Ok();
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

Status IncomingFile::Reserve(std::uint64_t size) {
  const auto length = static_cast<off_t>(size);
  if (size > 0 && (length < 0 || ::ftruncate(file_.get(), length) != 0)) {
    return FileError("sizing", name_, length < 0 ? EFBIG : errno);
  }
  // A full disk shows here, and not as a fault in the middle of receiving.
  if (size > 0 && ::fallocate(file_.get(), 0, 0, length) != 0 && errno != EOPNOTSUPP) {
    return FileError("reserving space for", name_, errno);
  }
  FERRY_TRY_ASSIGN(mapping_, MapFile(file_.get(), size, PROT_READ | PROT_WRITE, name_));
  bytes_ = BytesOf(mapping_);
  return Ok();
}

IncomingFile::~IncomingFile() {
  if (!temporary_.empty()) (void)::unlinkat(directory_.get(), temporary_.c_str(), 0);
}

Status IncomingFile::Flush() {
  if (!bytes_.empty() && ::msync(bytes_.data(), bytes_.size(), MS_SYNC) != 0) {
    return FileError("writing", name_, errno);
  }
  return Ok();
}

Status IncomingFile::Keep() {
  if (temporary_.empty()) {
    // A link replaces nothing, a new name does.
    const std::string temporary = TemporaryName();
    const std::string open = fmt::format("{}/{}", kOpenFiles, file_.get());
    if (::linkat(AT_FDCWD, open.c_str(), directory_.get(), temporary.c_str(), AT_SYMLINK_FOLLOW) !=
        0) {
      return FileError("naming", name_, errno);
    }
    temporary_ = temporary;
  }
  if (::renameat(directory_.get(), temporary_.c_str(), directory_.get(), name_.c_str()) != 0) {
    return FileError("naming", name_, errno);
  }
  temporary_.clear();
  return Ok();
}

}  // namespace ferry::tools
