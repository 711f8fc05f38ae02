// Options that tests give to verbs of several kinds.
#pragma once
#include <optional>

#include "ferry/core/deadline.h"
#include "ferry/cuda/resources.h"

namespace ferry::transfer {

// The fields that every verb has; converts to the options of the verb it is passed to.
struct AnyOptions {
  std::optional<Deadline> deadline = std::nullopt;
  std::optional<cuda::StreamRef> after = std::nullopt;

  template <typename VerbOptions>
  operator VerbOptions() const {  // NOLINT(google-explicit-constructor)
    VerbOptions options;
    options.deadline = deadline;
    options.after = after;
    return options;
  }
};

}  // namespace ferry::transfer
