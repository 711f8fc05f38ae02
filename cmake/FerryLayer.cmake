include_guard(GLOBAL)
include(GoogleTest)

# What the installed library is made of; filled by ferry_layer(), read by FerryInstall.
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
#               [PROGRAM <name>])
#
# *.cc become the library <name> (an interface library while there are none), testing/*.cc become
# <name>_testing, which only tests link, *_test.cc become one executable <name>_test, and
# *_bench.cc become <name>_bench, which only the target `benches` builds. With PROGRAM, main.cc
# becomes that executable and the layer stays out of the installed library.
function(ferry_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "PROGRAM" "DEPS;LIBS;TEST_DEPS")
  file(GLOB sources CONFIGURE_DEPENDS *.cc)
  file(GLOB headers CONFIGURE_DEPENDS *.h)
  set(tests ${sources})
  set(benches ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER benches INCLUDE REGEX "_bench\\.cc$")
  list(FILTER sources EXCLUDE REGEX "(_test|_bench|/main)\\.cc$")

  ferry_library(${name} STATIC "${sources}" "${headers}")
  ferry_link(${name} ${arg_DEPS} ${arg_LIBS})

  if(arg_PROGRAM)
    if(EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/main.cc")
      add_executable(${arg_PROGRAM} main.cc)
      target_compile_options(${arg_PROGRAM} PRIVATE ${FERRY_WARNINGS})
      target_link_libraries(${arg_PROGRAM} PRIVATE ${name})
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
    file(GLOB testing_sources CONFIGURE_DEPENDS testing/*.cc)
    file(GLOB testing_headers CONFIGURE_DEPENDS testing/*.h)
    list(FILTER testing_sources EXCLUDE REGEX "_(test|bench)\\.cc$")
    ferry_library(${name}_testing OBJECT "${testing_sources}" "${testing_headers}")
    ferry_link(${name}_testing ${name} GTest::gmock GTest::gtest)

    file(GLOB testing_tests CONFIGURE_DEPENDS testing/*_test.cc)
    list(APPEND tests ${testing_tests})
    ferry_layer_tests(${name} "${tests}" "${arg_TEST_DEPS}")
    ferry_layer_benches(${name} "${benches}" "${arg_TEST_DEPS}")
  endif()
endfunction()

function(ferry_library name type sources headers)
  if(sources)
    add_library(${name} ${type} ${sources} ${headers})
    target_compile_options(${name} PRIVATE ${FERRY_WARNINGS})
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

function(ferry_layer_tests layer sources deps)
  if(NOT sources)
    return()
  endif()
  add_executable(${layer}_test ${sources})
  target_compile_options(${layer}_test PRIVATE ${FERRY_WARNINGS})
  target_link_libraries(${layer}_test PRIVATE ${layer} ${layer}_testing ${deps} GTest::gmock
                                              GTest::gtest_main)
  gtest_discover_tests(${layer}_test DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                       TEST_PREFIX "${layer}."
                       PROPERTIES TIMEOUT ${FERRY_TEST_TIMEOUT} LABELS unit)
endfunction()

function(ferry_layer_benches layer sources deps)
  if(NOT sources OR NOT benchmark_FOUND)
    return()
  endif()
  add_executable(${layer}_bench EXCLUDE_FROM_ALL ${sources})
  target_compile_options(${layer}_bench PRIVATE ${FERRY_WARNINGS})
  target_link_libraries(${layer}_bench PRIVATE ${layer} ${layer}_testing ${deps}
                                               benchmark::benchmark_main)
  if(NOT TARGET benches)
    add_custom_target(benches)
  endif()
  add_dependencies(benches ${layer}_bench)
endfunction()

# A test of whole programs: one executable for tests/<name>.cc, linked to every layer and to what
# tests/ shares, with the path of the built program in FERRY_BINARY. It gets the machine to itself.
# Those of a <name> that ends in _slow_test are labelled slow, too.
function(ferry_multi_test name)
  add_executable(${name} ${name}.cc)
  target_compile_options(${name} PRIVATE ${FERRY_WARNINGS})
  get_property(layers GLOBAL PROPERTY FERRY_LAYERS)
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
  if(name MATCHES "_slow_test$")
    list(APPEND labels slow)
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                       TEST_PREFIX "${name}."
                       PROPERTIES TIMEOUT ${FERRY_MULTI_TEST_TIMEOUT} LABELS "${labels}"
                                  PROCESSORS 2)
endfunction()
