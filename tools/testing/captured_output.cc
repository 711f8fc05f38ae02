// Implements the redirection of outputs to a memfd.
#include "tools/testing/captured_output.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>

#include "ferry/core/check.h"

namespace ferry::tools {

CapturedOutput::CapturedOutput(int fd)
    : fd_(fd),
      before_(::fcntl(fd, F_DUPFD_CLOEXEC, 0)),
      written_(::memfd_create("captured", MFD_CLOEXEC)) {
  FERRY_CHECK(before_ && written_, errno);
  (void)std::fflush(nullptr);
  FERRY_CHECK(::dup2(written_.get(), fd) == fd, errno);
}

CapturedOutput::~CapturedOutput() { Restore(); }

void CapturedOutput::Restore() {
  if (!before_) return;
  (void)std::fflush(nullptr);
  FERRY_CHECK(::dup2(before_.get(), fd_) == fd_, errno);
  before_.reset();
}

std::string CapturedOutput::Take() {
  Restore();
  std::string text;
  std::array<char, 4096> part{};
  for (off_t at = 0;;) {
    const ssize_t got = ::pread(written_.get(), part.data(), part.size(), at);
    FERRY_CHECK(got >= 0, errno);
    if (got == 0) return text;
    text.append(part.data(), static_cast<std::size_t>(got));
    at += got;
  }
}

}  // namespace ferry::tools
