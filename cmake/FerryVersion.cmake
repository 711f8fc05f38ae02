# Generates the version header and the source that holds the commit.
include_guard(GLOBAL)

set(FERRY_GENERATED_DIR "${PROJECT_BINARY_DIR}/generated")
configure_file("${PROJECT_SOURCE_DIR}/ferry/core/version.h.in"
               "${FERRY_GENERATED_DIR}/ferry/core/version.h" @ONLY)

# The commit, looked up in every build. Which programs carry it: ferry_carry_commit().
find_package(Git QUIET)
set(ferry_commit_source "${FERRY_GENERATED_DIR}/build_commit.cc")
add_custom_target(ferry_note_commit
  COMMAND "${CMAKE_COMMAND}" "-DSOURCE_DIR=${PROJECT_SOURCE_DIR}" "-DOUTPUT=${ferry_commit_source}"
          "-DGIT=${GIT_EXECUTABLE}" "-DBUILD_TYPE=${CMAKE_BUILD_TYPE}"
          "-DSANITIZE=${FERRY_SANITIZE}" -P "${CMAKE_CURRENT_LIST_DIR}/note_commit.cmake"
  BYPRODUCTS "${ferry_commit_source}"
  COMMENT "" VERBATIM)
add_library(ferry_build_commit OBJECT "${ferry_commit_source}")
# Made by each build, so ninja has to see it as an input of its own.
set_target_properties(ferry_build_commit PROPERTIES UNITY_BUILD OFF)
add_dependencies(ferry_build_commit ferry_note_commit)
target_include_directories(ferry_build_commit PUBLIC "${PROJECT_SOURCE_DIR}")
target_compile_features(ferry_build_commit PUBLIC cxx_std_20)

# Puts the commit into a program or library that bench/ measures, which is where its scripts read it.
function(ferry_carry_commit name)
  target_sources(${name} PRIVATE $<TARGET_OBJECTS:ferry_build_commit>)
endfunction()
