// A secret that a test can look for in its own memory.
#pragma once
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "ferry/core/function_ref.h"

namespace ferry {

// A random secret. The object holds it masked, so that it is not itself a copy.
class MaskedSecret {
 public:
  MaskedSecret();

  // Calls `use` with the secret, in memory that is overwritten afterwards.
  void Reveal(FunctionRef<void(std::string_view)> use) const;
  // Writes the secret and a line end over the file.
  void WriteTo(const std::string& path) const;
  // How many copies of the secret the writable memory of this process has, unless other threads
  // make or overwrite one meanwhile. Leaves out mappings of more than 16 GiB, which are a
  // sanitizer's shadow.
  std::size_t Copies() const;

 private:
  std::size_t CopiesIn(std::span<const char> bytes) const;

  std::array<char, 40> masked_{};
};

}  // namespace ferry
