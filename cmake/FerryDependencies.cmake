# Finds the libraries that the build requires, and the optional ones.
include_guard(GLOBAL)

set(FERRY_ARCHIVES "" CACHE PATH "Folder of packaging/build_libs with libfmt.a and so on; empty: shared libraries")
if(FERRY_ARCHIVES)
  set(OPENSSL_USE_STATIC_LIBS ON)
endif()

find_package(Threads REQUIRED)
find_package(fmt CONFIG REQUIRED)
find_package(spdlog CONFIG REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto SSL)
find_package(ISAL REQUIRED)
# For metrics_address; without it, or with FERRY_METRICS off, that setting is an error.
option(FERRY_METRICS "Serve counters to Prometheus, where prometheus-cpp is installed" ON)
if(FERRY_METRICS)
  find_package(prometheus-cpp CONFIG QUIET)
endif()

find_package(CLI11 CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)

if(FERRY_TESTS)
  find_package(GTest REQUIRED)
  find_package(benchmark CONFIG)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
endif()
