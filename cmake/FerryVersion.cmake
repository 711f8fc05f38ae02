include_guard(GLOBAL)

set(FERRY_GIT_COMMIT "")
find_package(Git QUIET)
if(Git_FOUND AND EXISTS "${PROJECT_SOURCE_DIR}/.git")
  execute_process(COMMAND "${GIT_EXECUTABLE}" rev-parse --short=12 HEAD
                  WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" OUTPUT_VARIABLE FERRY_GIT_COMMIT
                  RESULT_VARIABLE git_status OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT git_status EQUAL 0)
    set(FERRY_GIT_COMMIT "")
  endif()
  # Each commit and checkout appends here, so the version follows without a manual configure.
  if(EXISTS "${PROJECT_SOURCE_DIR}/.git/logs/HEAD")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
                 "${PROJECT_SOURCE_DIR}/.git/logs/HEAD")
  endif()
endif()

set(FERRY_GENERATED_DIR "${PROJECT_BINARY_DIR}/generated")
configure_file("${PROJECT_SOURCE_DIR}/ferry/core/version.h.in"
               "${FERRY_GENERATED_DIR}/ferry/core/version.h" @ONLY)
