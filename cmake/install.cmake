# cmake --install build/release --prefix DIR: headers under DIR/include/larder, static libraries, the CMake package,
# and the command. A program then uses find_package(larder); examples/embed does. The component `sdk` leaves the command out.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/larder)

set(libraries larder_core)
set(not_installed PATTERN "cpu" EXCLUDE)  # only the linker joins the kernels
if(LARDER_TEXT)
  list(APPEND libraries larder_text)
  install(FILES cmake/text_dependencies.cmake DESTINATION ${config_dir} COMPONENT sdk)
else()
  list(APPEND not_installed PATTERN "text" EXCLUDE)
endif()
install(DIRECTORY larder DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT sdk FILES_MATCHING PATTERN "*.h" ${not_installed})
install(TARGETS ${libraries} EXPORT larder DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT sdk)
install(EXPORT larder NAMESPACE larder:: FILE larderTargets.cmake DESTINATION ${config_dir} COMPONENT sdk)

configure_package_config_file(cmake/larderConfig.cmake.in ${PROJECT_BINARY_DIR}/larderConfig.cmake INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/larderConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/larderConfig.cmake ${PROJECT_BINARY_DIR}/larderConfigVersion.cmake
  DESTINATION ${config_dir} COMPONENT sdk)

if(TARGET larder)
  install(TARGETS larder DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT command)
endif()
