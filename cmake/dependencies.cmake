# Every dependency, its Debian 12 package and version, and why (scripts/packages.txt is the list to install). Nothing is vendored or downloaded by the build.
find_package(Threads REQUIRED)
# nlohmann-json3-dev 3.11.2: config.json, safetensors headers, tokenizer.json.
find_package(nlohmann_json 3.10 REQUIRED)

if(LARDER_TEXT)
  include(${CMAKE_CURRENT_LIST_DIR}/text_dependencies.cmake)
endif()
if(LARDER_TOOLS)
  # libcli11-dev 2.1.2: the command line.
  find_package(CLI11 REQUIRED)
endif()
if(LARDER_TESTS)
  # libgtest-dev 1.12.1; libeigen3-dev 3.4: dense algebra in double precision as an independent oracle in tests.
  if(CMAKE_CROSSCOMPILING)  # Debian's library is for this machine; its sources come with it
    add_subdirectory(/usr/src/googletest ${PROJECT_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
  else()
    find_package(GTest REQUIRED)
  endif()
  find_package(Eigen3 3.3 REQUIRED NO_MODULE)
endif()
if(LARDER_BENCHMARKS)
  # libbenchmark-dev 1.7.1
  find_package(benchmark REQUIRED)
endif()
