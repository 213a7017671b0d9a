# Every dependency, its Debian 12 package and version, and why. Nothing is vendored or downloaded by the build.
find_package(Threads REQUIRED)
# nlohmann-json3-dev 3.11.2: config.json, safetensors headers, tokenizer.json.
find_package(nlohmann_json 3.10 REQUIRED)

if(LARDER_TEXT)
  # libpcre2-dev 10.42: regular expressions with Unicode classes and look-ahead, as tokenizers are written with.
  find_path(PCRE2_INCLUDE pcre2.h REQUIRED)
  find_library(PCRE2_LIBRARY pcre2-8 REQUIRED)
  add_library(larder_pcre2 INTERFACE)
  target_include_directories(larder_pcre2 SYSTEM INTERFACE ${PCRE2_INCLUDE})
  target_link_libraries(larder_pcre2 INTERFACE ${PCRE2_LIBRARY})
  # libutf8proc-dev 2.8: Unicode normal forms and character classes.
  find_path(UTF8PROC_INCLUDE utf8proc.h REQUIRED)
  find_library(UTF8PROC_LIBRARY utf8proc REQUIRED)
  add_library(larder_utf8proc INTERFACE)
  target_include_directories(larder_utf8proc SYSTEM INTERFACE ${UTF8PROC_INCLUDE})
  target_link_libraries(larder_utf8proc INTERFACE ${UTF8PROC_LIBRARY})
endif()
if(LARDER_TOOLS)
  # libcli11-dev 2.1.2: the command line.
  find_package(CLI11 REQUIRED)
endif()
if(LARDER_TESTS)
  # libgtest-dev 1.12.1; libeigen3-dev 3.4: dense algebra in double precision as an independent oracle in tests.
  find_package(GTest REQUIRED)
  find_package(Eigen3 3.3 REQUIRED NO_MODULE)
endif()
if(LARDER_BENCHMARKS)
  # libbenchmark-dev 1.7.1
  find_package(benchmark REQUIRED)
endif()
