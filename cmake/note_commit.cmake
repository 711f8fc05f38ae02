# Writes OUTPUT, the source of ferry/core/build_commit.h: the commit of SOURCE_DIR, and whether what
# is built from it differs; in the text that bench/summary.py looks for, the build type and the
# sanitizer, too. Results and prose do not count: a benchmark writes its result while the
# next one is to be run. Leaves the file alone where nothing has changed, so nothing is built anew.
#
#   cmake -DSOURCE_DIR=... -DOUTPUT=... [-DGIT=git] [-DBUILD_TYPE=RelWithDebInfo] [-DSANITIZE=thread]
#         -P note_commit.cmake
set(commit "")
set(clean "no")
if(GIT AND EXISTS "${SOURCE_DIR}/.git")
  execute_process(COMMAND "${GIT}" rev-parse HEAD
                  WORKING_DIRECTORY "${SOURCE_DIR}" OUTPUT_VARIABLE commit
                  RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(failed)
    set(commit "")
  else()
    execute_process(COMMAND "${GIT}" --no-optional-locks status --porcelain -- .
                            ":(exclude)bench/results" ":(exclude)docs" ":(exclude)README.md"
                    WORKING_DIRECTORY "${SOURCE_DIR}" OUTPUT_VARIABLE changes
                    RESULT_VARIABLE failed ERROR_QUIET)
    if(NOT failed AND changes STREQUAL "")
      set(clean "yes")
    endif()
  endif()
endif()
if(clean STREQUAL "yes")
  set(is_clean "true")
else()
  set(is_clean "false")
endif()

file(CONFIGURE OUTPUT "${OUTPUT}" @ONLY CONTENT [=[
// Made by cmake/note_commit.cmake.
#include "ferry/core/build_commit.h"

namespace ferry {
namespace {

// The linker keeps it, also where nobody calls BuiltFrom(): bench/summary.py looks for it in the file.
[[gnu::used, gnu::retain]] constexpr char kBuiltFrom[] =
    "FERRY_BUILT_FROM commit=@commit@ clean=@clean@ type=@BUILD_TYPE@ sanitizer=@SANITIZE@;";

}  // namespace

BuildCommit BuiltFrom() { return {"@commit@", @is_clean@}; }

}  // namespace ferry
]=])
