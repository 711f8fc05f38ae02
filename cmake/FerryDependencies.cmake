include_guard(GLOBAL)

find_package(Threads REQUIRED)
find_package(fmt CONFIG REQUIRED)
find_package(spdlog CONFIG REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(ISAL REQUIRED)

find_package(CLI11 CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)

if(FERRY_TESTS)
  find_package(GTest REQUIRED)
  find_package(benchmark CONFIG)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
endif()
