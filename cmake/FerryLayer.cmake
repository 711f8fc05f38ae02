# ferry_layer(): builds the library, tests and benchmarks of one folder.
include_guard(GLOBAL)
include(GoogleTest)

# The parts of the installed library; filled by ferry_layer(), read by FerryInstall.
define_property(GLOBAL PROPERTY FERRY_LAYERS)
define_property(GLOBAL PROPERTY FERRY_HEADERS)
define_property(GLOBAL PROPERTY FERRY_LIBS)

set(FERRY_TEST_TIMEOUT 60)
set(FERRY_MULTI_TEST_TIMEOUT 120)
if(FERRY_SANITIZE)
  set(FERRY_TEST_TIMEOUT 180)
  set(FERRY_MULTI_TEST_TIMEOUT 360)
endif()

# Builds the sources of the calling folder and its tests:
#
#   ferry_layer(<name> [DEPS <layer>...] [LIBS <external target>...] [TEST_DEPS <target>...]
#               [FOLDERS <folder>...] [WITHOUT <regex>...] [PROGRAM <name>] [GPU_TESTS]
#               [ASAN_FILTER <filter>] [TSAN_FILTER <filter>])
#
# *.cc become the library <name> (an interface library while there are none), testing/*.cc become
# <name>_testing, which only tests link, *_test.cc become one executable <name>_test, and
# *_bench.cc become <name>_bench, which only the target `benches` builds. With PROGRAM, main.cc
# becomes that executable and the layer stays out of the installed library. *.cu go where *.cc of
# that name would go, in builds with CUDA. With GPU_TESTS, those tests whose names begin with Gpu are
# labelled gpu instead of unit, and run one at a time. What is in FOLDERS belongs to the layer, too;
# sources whose path matches a regex of WITHOUT do not.
# Sanitizers run the suites of their subject (tests/subjects.txt), and of these only the tests of
# ASAN_FILTER or TSAN_FILTER (as --gtest_filter has it): sweeps over sizes and formats by one thread take
# minutes under ThreadSanitizer and find nothing.
function(ferry_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "GPU_TESTS" "PROGRAM;ASAN_FILTER;TSAN_FILTER"
                        "DEPS;LIBS;TEST_DEPS;FOLDERS;WITHOUT")
  ferry_glob_sources(sources "")
  file(GLOB headers CONFIGURE_DEPENDS *.h)
  foreach(folder IN LISTS arg_FOLDERS)
    ferry_glob_sources(folder_sources "${folder}/")
    file(GLOB folder_headers CONFIGURE_DEPENDS ${folder}/*.h)
    list(APPEND sources ${folder_sources})
    list(APPEND headers ${folder_headers})
  endforeach()
  foreach(regex IN LISTS arg_WITHOUT)
    list(FILTER sources EXCLUDE REGEX "${regex}")
  endforeach()
  set(tests ${sources})
  set(benches ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.c[cu]$")
  list(FILTER benches INCLUDE REGEX "_bench\\.c[cu]$")
  list(FILTER sources EXCLUDE REGEX "(_test|_bench|/main)\\.c[cu]$")

  ferry_library(${name} STATIC "${sources}" "${headers}")
  ferry_link(${name} ${arg_DEPS} ${arg_LIBS})

  if(arg_PROGRAM)
    if(EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/main.cc")
      add_executable(${arg_PROGRAM} main.cc)
      ferry_warnings(${arg_PROGRAM})
      target_link_libraries(${arg_PROGRAM} PRIVATE ${name})
      ferry_link_statically(${arg_PROGRAM})
      set_target_properties(${arg_PROGRAM} PROPERTIES RUNTIME_OUTPUT_DIRECTORY
                            "${PROJECT_BINARY_DIR}")
    endif()
  else()
    set_property(GLOBAL APPEND PROPERTY FERRY_LAYERS ${name})
    set_property(GLOBAL APPEND PROPERTY FERRY_HEADERS ${headers})
    set_property(GLOBAL APPEND PROPERTY FERRY_LIBS ${arg_LIBS})
  endif()

  if(FERRY_TESTS)
    # Objects, not an archive: a suite of TEST_Ps in it is referred to by nobody.
    ferry_glob_sources(testing_sources testing/)
    file(GLOB testing_headers CONFIGURE_DEPENDS testing/*.h)
    list(FILTER testing_sources EXCLUDE REGEX "_(test|bench)\\.c[cu]$")
    ferry_library(${name}_testing OBJECT "${testing_sources}" "${testing_headers}")
    ferry_link(${name}_testing ${name} GTest::gmock GTest::gtest)

    file(GLOB testing_tests CONFIGURE_DEPENDS testing/*_test.cc)
    list(APPEND tests ${testing_tests})
    ferry_layer_tests(${name} "${tests}" "${arg_TEST_DEPS}" "${arg_GPU_TESTS}"
                      "${arg_ASAN_FILTER}" "${arg_TSAN_FILTER}")
    ferry_layer_benches(${name} "${benches}" "${arg_TEST_DEPS}")
  endif()
endfunction()

function(ferry_glob_sources variable folder)
  file(GLOB sources CONFIGURE_DEPENDS ${folder}*.cc)
  if(FERRY_HAVE_CUDA)
    file(GLOB device_sources CONFIGURE_DEPENDS ${folder}*.cu)
    list(APPEND sources ${device_sources})
  endif()
  set(${variable} ${sources} PARENT_SCOPE)
endfunction()

# Tests are mostly macros of GoogleTest, which take the compiler two to five times as long with
# optimization, and run once. What they test is in libraries.
function(ferry_compile_quickly name)
  target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-O0>")
endfunction()

function(ferry_warnings name)
  target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${FERRY_WARNINGS}>"
                                         "$<$<COMPILE_LANGUAGE:CUDA>:${FERRY_CUDA_WARNINGS}>")
endfunction()

function(ferry_library name type sources headers)
  if(sources)
    add_library(${name} ${type} ${sources} ${headers})
    ferry_warnings(${name})
    target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}" "${FERRY_GENERATED_DIR}")
    target_compile_features(${name} PUBLIC cxx_std_20)
  else()
    add_library(${name} INTERFACE)
    target_include_directories(${name} INTERFACE "${PROJECT_SOURCE_DIR}" "${FERRY_GENERATED_DIR}")
    target_compile_features(${name} INTERFACE cxx_std_20)
  endif()
endfunction()

function(ferry_link name)
  get_target_property(type ${name} TYPE)
  if(type STREQUAL "INTERFACE_LIBRARY")
    target_link_libraries(${name} INTERFACE ${ARGN})
  else()
    target_link_libraries(${name} PUBLIC ${ARGN})
  endif()
endfunction()

function(ferry_layer_tests layer sources deps gpu_tests asan_filter tsan_filter)
  ferry_keep_tests(sources)
  if(NOT sources)
    return()
  endif()
  add_executable(${layer}_test ${sources})
  ferry_warnings(${layer}_test)
  if(NOT layer STREQUAL "ferry_kernels")  # whose tests compute what they expect
    ferry_compile_quickly(${layer}_test)
  endif()
  # Most of what a test compiles is the headers that all of them include. The library's own files are
  # compiled one by one, which shows an #include that is missing.
  if(NOT CMAKE_UNITY_BUILD)
    set_target_properties(${layer}_test PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  endif()
  target_link_libraries(${layer}_test PRIVATE ${layer} ${layer}_testing ${deps} GTest::gmock
                                              GTest::gtest_main)
  set(filter "*")
  if(gpu_tests)
    set(may_be_empty "")
    if(NOT FERRY_HAVE_CUDA)
      set(may_be_empty --may-be-empty)  # most of them are not compiled then
    endif()
    ferry_test_group(${layer}.gpu ${layer}_test "Gpu*" 1/1 ${may_be_empty})
    set_tests_properties(${layer}.gpu PROPERTIES LABELS gpu RESOURCE_LOCK gpu)
    set(filter "-Gpu*")
  endif()
  if(FERRY_SANITIZE STREQUAL "address" AND asan_filter)
    set(filter "${asan_filter}")
  elseif(FERRY_SANITIZE STREQUAL "thread" AND tsan_filter)
    set(filter "${tsan_filter}")
  endif()
  # So many that none takes much longer than the others.
  list(LENGTH sources parts)
  math(EXPR parts "(${parts} + 3) / 4")
  foreach(part RANGE 1 ${parts})
    ferry_test_group(${layer}.part_${part} ${layer}_test "${filter}" ${part}/${parts})
    set_tests_properties(${layer}.part_${part} PROPERTIES LABELS unit COST 10)
  endforeach()
endfunction()

# A part of a program's tests in one process, which takes a fraction of the time that a process for
# each takes. What became of each test is in groups/<name>.xml, which the summary of scripts/test
# reads. To run one test: the program with --gtest_filter. What follows is for run_gtests.py.
function(ferry_test_group name program filter part)
  add_test(NAME ${name}
           COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/scripts/run_gtests.py"
                   --name ${name} "--filter=${filter}" --part ${part}
                   --timeout ${FERRY_TEST_TIMEOUT} ${ARGN}
                   --junit "${PROJECT_BINARY_DIR}/groups/${name}.xml" $<TARGET_FILE:${program}>)
  # Each test has a timeout of its own; this is for the runner's own faults.
  set_tests_properties(${name} PROPERTIES TIMEOUT 1200)
endfunction()

function(ferry_layer_benches layer sources deps)
  if(NOT sources OR NOT benchmark_FOUND)
    return()
  endif()
  add_executable(${layer}_bench EXCLUDE_FROM_ALL ${sources})
  ferry_warnings(${layer}_bench)
  target_link_libraries(${layer}_bench PRIVATE ${layer} ${layer}_testing ${deps}
                                               benchmark::benchmark_main)
  ferry_carry_commit(${layer}_bench)
  if(NOT TARGET benches)
    add_custom_target(benches)
  endif()
  add_dependencies(benches ${layer}_bench)
endfunction()

# A test of whole programs: one executable <name> of <source>, linked to every layer and to what
# tests/ shares, with the path of the built program in FERRY_BINARY. Those that measure rates get the
# machine to themselves. Those of a <name> that ends in _slow_test are labelled slow, too.
function(ferry_multi_test name source)
  add_executable(${name} "${source}")
  ferry_warnings(${name})
  get_property(layers GLOBAL PROPERTY FERRY_LAYERS)
  if(NOT TARGET ferry)
    list(REMOVE_ITEM layers ferry_kernels)  # only the program's tests run kernels
  endif()
  list(TRANSFORM layers APPEND _testing OUTPUT_VARIABLE testing)
  # Before gtest_main, whose main() it replaces.
  target_link_libraries(${name} PRIVATE ferry_multi_testing ${layers} ${testing}
                                        nlohmann_json::nlohmann_json
                                        GTest::gmock GTest::gtest_main)
  if(TARGET ferry)
    target_compile_definitions(${name} PRIVATE "FERRY_BINARY=\"$<TARGET_FILE:ferry>\"")
    add_dependencies(${name} ferry)
  endif()
  set(labels multi)
  set(timeout ${FERRY_MULTI_TEST_TIMEOUT})
  set(processors 1)
  if(name MATCHES "^(admission|bystanders|cli|interfaces|pending_peers)_test$" OR name MATCHES "huge")
    set(processors 2)
  endif()
  set(cost 0)
  if(name MATCHES "_slow_test$")
    list(APPEND labels slow)
    set(timeout 400)
    set(cost 1000)  # begins first
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                       TEST_PREFIX "${name}."
                       PROPERTIES TIMEOUT ${timeout} LABELS "${labels}"
                                  PROCESSORS ${processors} COST ${cost})
endfunction()
