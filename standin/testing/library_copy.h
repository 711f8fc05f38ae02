// For tests that load a library anew with environment variables of its own.
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace ferry::standin::testing {

// The stand-in for GPUDirect-TCPX: FERRY_STANDIN_FILE says where, on a machine that it was brought
// to.
std::string StandInFile();

using Variables = std::vector<std::pair<std::string, std::string>>;

// Sets variables of the process, by their names behind the prefix, while it lives.
class ScopedVariables {
 public:
  explicit ScopedVariables(const Variables& variables, const std::string& prefix = {});
  ~ScopedVariables();
  ScopedVariables(const ScopedVariables&) = delete;
  ScopedVariables& operator=(const ScopedVariables&) = delete;

 private:
  std::vector<std::string> names_;
};

// A copy of a library's file, which shares nothing with others once it is loaded. The file goes
// with this; what was loaded from it stays.
class LibraryCopy {
 public:
  explicit LibraryCopy(const std::string& file);
  ~LibraryCopy();
  LibraryCopy(const LibraryCopy&) = delete;
  LibraryCopy& operator=(const LibraryCopy&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace ferry::standin::testing
