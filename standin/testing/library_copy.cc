// Implements copies of library files and scoped environment variables.

#include "standin/testing/library_copy.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace ferry::standin::testing {

std::string StandInFile() {
  const char* const brought = std::getenv("FERRY_STANDIN_FILE");
  return brought != nullptr ? brought : FERRY_STANDIN_LIBRARY;
}

ScopedVariables::ScopedVariables(const Variables& variables, const std::string& prefix) {
  for (const auto& [name, value] : variables) {
    names_.push_back(prefix + name);
    (void)::setenv(names_.back().c_str(), value.c_str(), 1);
  }
}

ScopedVariables::~ScopedVariables() {
  for (const std::string& name : names_) (void)::unsetenv(name.c_str());
}

LibraryCopy::LibraryCopy(const std::string& file)
    : path_((std::filesystem::temp_directory_path() / "ferry-library-XXXXXX").string()) {
  const int fd = ::mkstemp(path_.data());
  if (fd >= 0) (void)::close(fd);
  std::filesystem::copy_file(file, path_, std::filesystem::copy_options::overwrite_existing);
}

LibraryCopy::~LibraryCopy() {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

}  // namespace ferry::standin::testing
