// Carries a library Error until it is raised as the exception of its code in tensorferry.errors.
#pragma once
#include <nanobind/nanobind.h>

#include <utility>

#include "ferry/core/result.h"

namespace ferry::python {

class Raised : public std::exception {
 public:
  explicit Raised(Error error) : error_(std::move(error)) {}
  const Error& error() const noexcept { return error_; }
  const char* what() const noexcept override { return error_.message().c_str(); }

 private:
  Error error_;
};

template <class T>
T Take(Result<T> result) {
  if (!result) throw Raised(std::move(result).error());
  return *std::move(result);
}
inline void Check(const Status& status) {
  if (!status) throw Raised(status.error());
}

void BindErrors(nanobind::module_& module);

}  // namespace ferry::python
