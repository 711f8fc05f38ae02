// Reads the shared secret and checks who may read its file.
#include "ferry/core/secret.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "ferry/core/fd.h"
#include "ferry/core/log.h"

namespace ferry {
namespace {

Result<std::string> ReadSecretFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  // One byte more than allowed with its line end, so that a longer file is noticed without reading
  // all.
  std::string text(kMaxSecretBytes + 2, '\0');
  if (file) file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad()) {
    return Error(Code::kInvalidArgument,
                 fmt::format("secret_file {} cannot be read: {}; give this user the right to read "
                             "it, or name another file",
                             path, ErrnoError("open", errno).message()));
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  // Editors and `openssl rand` end the file with a line end; only one is taken off.
  if (!text.empty() && text.back() == '\n') text.pop_back();
  if (text.size() < kMinSecretBytes || text.size() > kMaxSecretBytes) {
    return Error(
        Code::kInvalidArgument,
        fmt::format("secret_file {} holds {}{} bytes, {} to {} are allowed; make one by "
                    "\"openssl rand -hex 32\"",
                    path, text.size() > kMaxSecretBytes ? "more than " : "",
                    std::min(text.size(), kMaxSecretBytes), kMinSecretBytes, kMaxSecretBytes));
  }
  return text;
}

}  // namespace

Result<std::string> LoadSecret(const Config& config) {
  if (!config.secret.empty() && !config.secret_file.empty()) {
    return Error(Code::kInvalidArgument,
                 "both secret (FERRY_SECRET) and secret_file (FERRY_SECRET_FILE) are set; give one "
                 "of them");
  }
  if (config.secret_file.empty()) return config.secret;
  return ReadSecretFile(config.secret_file);
}

void WarnIfOthersMayRead(std::string_view setting, const std::string& path) {
  struct stat about {};
  if (path.empty() || ::stat(path.c_str(), &about) != 0) return;
  if ((about.st_mode & (S_IRGRP | S_IROTH)) == 0) return;
  Log(LogLevel::kWarn, "config", "{} {} may be read by others; chmod 600 it", setting, path);
}

}  // namespace ferry
