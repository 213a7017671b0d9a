# Flags that every target shares.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

add_library(larder_flags INTERFACE)
# No contraction: a product and a sum fuse only where the source says so, or bits would differ between compilers.
target_compile_options(larder_flags INTERFACE -ffp-contract=off)
if(PROJECT_IS_TOP_LEVEL)  # a project that embeds larder chooses its own warnings
  target_compile_options(larder_flags INTERFACE -Wall -Wextra -Wshadow)
endif()
# An index past a vector or a span ends a debug or sanitized program.
target_compile_definitions(larder_flags INTERFACE $<$<NOT:$<CONFIG:Release>>:_GLIBCXX_ASSERTIONS>)
if(LARDER_WERROR)
  target_compile_options(larder_flags INTERFACE -Werror)
endif()
if(LARDER_SANITIZE)
  target_compile_options(larder_flags INTERFACE -fsanitize=${LARDER_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(larder_flags INTERFACE -fsanitize=${LARDER_SANITIZE})
endif()

# For a build from scratch, as CI's: what many files include is read once for each target. TESTS: not for the library,
# whose sources then prove that its headers stand alone. Off otherwise: it hides an include that is missing, and ccache
# cannot see through it.
set(LARDER_PCH OFF CACHE STRING "Precompile the headers that many files include: OFF, ON, or TESTS for theirs alone")
function(larder_precompile target)
  if(NOT LARDER_PCH OR (LARDER_PCH STREQUAL TESTS AND NOT target MATCHES "test"))
    return()
  endif()
  if(${ARGV1} STREQUAL REUSE_FROM)
    target_precompile_headers(${target} ${ARGN})
  else()
    target_precompile_headers(${target} PRIVATE ${ARGN})
  endif()
endfunction()

# Each folder of larder/cpu is one instruction set with flags of its own; nothing outside it is compiled with them.
function(larder_kernel_flags target)
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    return()
  endif()
  file(GLOB avx2 CONFIGURE_DEPENDS larder/cpu/avx2/*.cc)
  file(GLOB avx512 CONFIGURE_DEPENDS larder/cpu/avx512/*.cc)
  file(GLOB avx512_vnni CONFIGURE_DEPENDS larder/cpu/avx512_vnni/*.cc)
  file(GLOB avx512_bf16 CONFIGURE_DEPENDS larder/cpu/avx512_bf16/*.cc)
  file(GLOB amx_bf16 CONFIGURE_DEPENDS larder/cpu/amx_bf16/*.cc)
  set(f_avx2 -mavx2 -mfma -mf16c)
  if(LARDER_SANITIZE MATCHES address AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # Checks of addresses are calls, and of pointers' arithmetic none: in loops unrolled over registers, code for each
    # check takes a minute a file to compile.
    list(APPEND f_avx2 -fno-sanitize=pointer-overflow -mllvm -asan-instrumentation-with-call-threshold=0)
  endif()
  set(f_avx512 ${f_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC 12 warns of its own headers (_mm512_undefined_ps, GCC bug 105593).
    list(APPEND f_avx512 -Wno-uninitialized -Wno-maybe-uninitialized)
  endif()
  set_source_files_properties(${avx2} PROPERTIES COMPILE_OPTIONS "${f_avx2}")
  set_source_files_properties(${avx512} PROPERTIES COMPILE_OPTIONS "${f_avx512}")
  set_source_files_properties(${avx512_vnni} PROPERTIES COMPILE_OPTIONS "${f_avx512};-mavx512vnni")
  set_source_files_properties(${avx512_bf16} PROPERTIES COMPILE_OPTIONS "${f_avx512};-mavx512vnni;-mavx512bf16")
  set_source_files_properties(${amx_bf16} PROPERTIES COMPILE_OPTIONS "${f_avx512};-mavx512bf16;-mamx-tile;-mamx-bf16")
  set_source_files_properties(${avx2} ${avx512} ${avx512_vnni} ${avx512_bf16} ${amx_bf16} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
endfunction()

# What a library of larder is, in this tree and installed: "larder/x/y.h" is found, C++20 is asked for.
function(larder_library target export_name)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${export_name})
endfunction()
